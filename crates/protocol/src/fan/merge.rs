//! Making one reply of several.

use super::info::{self, Sections};
use super::{MOVE_BYTES, figures};
use crate::commands::{CommandId, Merge, id};
use crate::reply::{Scanned, Scanner};
use crate::{encode, number};

/// Longest number in a reply: `-9223372036854775808`.
const NUMBER_BYTES_MAX: usize = 20;

/// What one server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its name, for errors and for INFO.
    pub server: &'a str,
    /// One whole reply, in the version of the protocol that the client speaks.
    pub reply: &'a [u8],
}

/// What a [`Merger`] made of the parts. In any case it is one whole reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// What the client asked for.
    Whole,
    /// An error, since that of one server was one.
    Failed {
        /// Which of the parts.
        part: usize,
    },
    /// An error, since a server's reply to this command cannot look like that.
    Misshapen {
        /// Which of the parts.
        part: usize,
    },
    /// An error that is no server's fault: the command cannot be merged, no part was given, or a sum is too large.
    Refused,
}

/// Merges one reply after the other; keeps its memory, so that it allocates only while that grows.
///
/// What failed at one server failed: the reply is that server's error, with its code still in front, and says whose it
/// is:
///
/// ```text
///   -WRONGTYPE respool: 127.0.0.1:6381: Operation against a key holding the wrong kind of value
///   -ERR respool: 127.0.0.1:6381: value is not an integer or out of range
/// ```
///
/// MOVED and ASK are part of the text behind ERR: in front they would tell a client to go somewhere. What the other
/// servers did is not undone.
///
/// What the table calls [`Merge::Special`] is done so:
///
/// | command | reply |
/// |---|---|
/// | FUNCTION STATS | that of the first server on which a function runs; engines and libraries are the same on all |
/// | RANDOMKEY | one of those found, by a hash of all of them: not always the first server's |
/// | LATENCY LATEST, HISTORY | the rows of all, one server after the other: several rows per event |
/// | PUBSUB SHARDNUMSUB | of each channel how many listen to it anywhere |
/// | INFO | one text, see below |
/// | MEMORY STATS | the sums, and what is a share is made of them |
/// | LATENCY HISTOGRAM | of each command the calls of all, and how many of them took no longer than each bound |
/// | LATENCY DOCTOR, GRAPH, MEMORY DOCTOR, MALLOC-STATS | one text, each server's under its name |
///
/// In INFO stands the sum of what can be added; of what cannot, the largest; what says who or what a server is is the
/// first one's. [`Sections`] has what is said of each of them.
///
/// SCAN has a [`Cursor`](super::Cursor).
#[derive(Clone, Debug, Default)]
pub struct Merger {
    /// Where the next element of each part is.
    rests: Vec<Rest>,
}

/// What of an array has not been taken.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The next element.
    at: usize,
    /// How many there are.
    left: usize,
}

impl Merger {
    /// Appends the one reply. `order` is [`Split::order`](super::Split::order) of the request, and the parts are in the
    /// order of its shares; only [`Merge::KeyOrder`] looks at it. A single part that is no error is appended as it came.
    pub fn merge(
        &mut self,
        command: CommandId,
        order: &[u16],
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Merged {
        self.merge_asked(command, order, Sections::default(), parts, out)
    }

    /// The same of INFO, of which the client asked for these sections.
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
        let trouble = match self.append(command, order, asked, parts, out) {
            Ok(()) => return Merged::Whole,
            Err(trouble) => trouble,
        };
        out.truncate(start);
        match trouble {
            Trouble::Failed(part) => failed(parts, part, out),
            Trouble::Misshapen(part) => misshapen(parts, part, out),
            Trouble::Refused(why) => {
                encode::error(out, why.as_bytes());
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
    ) -> Result<(), Trouble> {
        if parts.is_empty() {
            return Err(Trouble::Refused("ERR respool: no server was asked"));
        }
        let way = Way::of(command);
        if let (Some(Way::OneSucceeded), [_, _, ..]) = (way, parts) {
            return one_succeeded(parts, out);
        }
        if let Some(failed) = parts.iter().position(|part| is_error(part.reply)) {
            return Err(Trouble::Failed(failed));
        }
        match way {
            Some(Way::KeyOrder) => return self.key_order(order, parts, out),
            Some(Way::Numbers(fold)) if parts.iter().all(|part| part.reply.starts_with(b":")) => {
                return one_number(parts, fold, out);
            }
            _ => {}
        }
        // From here on every reply may be taken for whole.
        if let Some(odd) = parts.iter().position(|part| !is_whole(part.reply)) {
            return Err(Trouble::Misshapen(odd));
        }
        if let [only] = parts
            && asked == Sections::default()
        {
            out.extend_from_slice(only.reply);
            return Ok(());
        }
        let Some(way) = way else {
            return Err(Trouble::Refused(
                "ERR respool: this command cannot be asked of several servers at once",
            ));
        };
        match way {
            Way::First => out.extend_from_slice(parts[0].reply),
            Way::Concat => concat(parts, out)?,
            Way::Numbers(fold) => numbers(parts, fold, out)?,
            Way::Drawn => drawn(parts, out)?,
            Way::Running => running(parts, out)?,
            Way::Listeners => listeners(parts, out)?,
            Way::Figures(merge) => merge(parts, out).map_err(Trouble::Misshapen)?,
            Way::Info => texts(parts, out, |texts| info::merge(texts, asked))?,
            Way::Texts => texts(parts, out, info::headed)?,
            Way::KeyOrder | Way::OneSucceeded => unreachable!("done above"),
        }
        Ok(())
    }

    /// The elements of all parts, back in the order of the keys. Of MGET, so on the way of many requests: each
    /// element is looked at once and copied once.
    fn key_order(
        &mut self,
        order: &[u16],
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        self.rests.clear();
        let mut most = 2 + NUMBER_BYTES_MAX;
        for (at, part) in parts.iter().enumerate() {
            let list = List::of(part.reply).filter(|list| list.kind == b'*');
            let list = list.ok_or(Trouble::Misshapen(at))?;
            most += part.reply.len();
            self.rests.push(Rest {
                at: part.reply.len() - list.body.len(),
                left: list.values,
            });
        }
        out.reserve(most + MOVE_BYTES);
        encode::array(out, order.len());
        let mut scanner = Scanner::default();
        for &share in order {
            let share = usize::from(share);
            let (Some(rest), Some(part)) = (self.rests.get_mut(share), parts.get(share)) else {
                return Err(Trouble::Refused(
                    "ERR respool: a part of the reply is missing",
                ));
            };
            let bytes = &part.reply[rest.at..];
            match scanner.scan(bytes) {
                Ok(Scanned::Whole(len)) if rest.left > 0 => {
                    rest.left -= 1;
                    rest.at += len;
                    append(out, bytes, len);
                }
                _ => return Err(Trouble::Misshapen(share)),
            }
        }
        let ends = |(rest, part): (&Rest, &Part<'_>)| rest.left == 0 && rest.at == part.reply.len();
        match self.rests.iter().zip(parts).position(|both| !ends(both)) {
            Some(odd) => Err(Trouble::Misshapen(odd)),
            None => Ok(()),
        }
    }
}

/// Appends the first `len` bytes. Mostly they are few: then they are moved with some of what stands behind them, which costs
/// less than to look how many they are.
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

/// How the parts become one.
#[derive(Clone, Copy)]
enum Way {
    KeyOrder,
    Concat,
    First,
    OneSucceeded,
    /// Number by number; one number, or an array of them.
    Numbers(fn(i64, i64) -> Option<i64>),
    Drawn,
    Running,
    Listeners,
    /// MEMORY STATS, LATENCY HISTOGRAM.
    Figures(fn(&[Part<'_>], &mut Vec<u8>) -> Result<(), usize>),
    Info,
    Texts,
}

impl Way {
    #[inline]
    fn of(command: CommandId) -> Option<Way> {
        Some(match command.get().fan_out.merge {
            Merge::KeyOrder => Way::KeyOrder,
            Merge::Concat => Way::Concat,
            Merge::AllSucceeded => Way::First,
            Merge::OneSucceeded => Way::OneSucceeded,
            Merge::Sum => Way::Numbers(i64::checked_add),
            Merge::Min => Way::Numbers(|one, other| Some(one.min(other))),
            Merge::And => Way::Numbers(|one, other| Some(i64::from(one != 0 && other != 0))),
            Merge::One => return None,
            Merge::Special => match command {
                id::RANDOMKEY => Way::Drawn,
                id::FUNCTION_STATS => Way::Running,
                id::LATENCY_LATEST | id::LATENCY_HISTORY => Way::Concat,
                id::PUBSUB_SHARDNUMSUB => Way::Listeners,
                id::INFO => Way::Info,
                id::MEMORY_STATS => Way::Figures(figures::memory),
                id::LATENCY_HISTOGRAM => Way::Figures(figures::histogram),
                id::LATENCY_DOCTOR
                | id::LATENCY_GRAPH
                | id::MEMORY_DOCTOR
                | id::MEMORY_MALLOC_STATS => Way::Texts,
                _ => return None,
            },
        })
    }
}

/// Why there is no reply to be had.
enum Trouble {
    /// This part is an error.
    Failed(usize),
    /// This part is not what the command answers.
    Misshapen(usize),
    /// It is no part's fault.
    Refused(&'static str),
}

const TOO_LARGE: Trouble = Trouble::Refused("ERR respool: the sum of all servers is too large");

// --- the ways ---

/// Any that is no error. If all are: one that says more than that there was nothing to be stopped there.
fn one_succeeded(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), Trouble> {
    let good = parts.iter().position(|part| !is_error(part.reply));
    match good {
        Some(good) if is_whole(parts[good].reply) => {
            out.extend_from_slice(parts[good].reply);
            Ok(())
        }
        Some(odd) => Err(Trouble::Misshapen(odd)),
        None => {
            let says_more = |part: &Part<'_>| !error_text(part.reply).starts_with(b"NOTBUSY");
            Err(Trouble::Failed(
                parts.iter().position(says_more).unwrap_or(0),
            ))
        }
    }
}

/// One number of one number each, without memory.
fn one_number(
    parts: &[Part<'_>],
    fold: fn(i64, i64) -> Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), Trouble> {
    let mut all = None;
    for (at, part) in parts.iter().enumerate() {
        let one = integer(part.reply).ok_or(Trouble::Misshapen(at))?;
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
) -> Result<(), Trouble> {
    let mut all: Vec<i64> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let list = array(part.reply).ok_or(Trouble::Misshapen(at))?;
        let numbers: Option<Vec<i64>> = list.elements().map(integer).collect();
        let numbers = numbers.ok_or(Trouble::Misshapen(at))?;
        if at == 0 {
            all = numbers;
        } else if numbers.len() != all.len() {
            return Err(Trouble::Misshapen(at));
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

/// Channels, each with how many listen to it, in the order asked.
fn listeners(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), Trouble> {
    let mut all: Vec<(&[u8], i64)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let list = array(part.reply).ok_or(Trouble::Misshapen(at))?;
        let elements: Vec<&[u8]> = list.elements().collect();
        let (pairs, rest) = elements.as_chunks();
        let counted = pairs
            .iter()
            .map(|[name, count]| Some((*name, integer(count)?)));
        let counted: Option<Vec<(&[u8], i64)>> = counted.collect();
        let counted = counted.filter(|_| rest.is_empty());
        let counted = counted.ok_or(Trouble::Misshapen(at))?;
        if at == 0 {
            all = counted;
            continue;
        }
        if counted.len() != all.len() {
            return Err(Trouble::Misshapen(at));
        }
        for ((name, sum), (other, count)) in all.iter_mut().zip(counted) {
            if *name != other {
                return Err(Trouble::Misshapen(at));
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

/// One aggregate behind the other: arrays, or in RESP3 sets or maps.
fn concat(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), Trouble> {
    let kind = parts[0].reply[0];
    let mut count = 0usize;
    let mut bytes = 2 + NUMBER_BYTES_MAX;
    for (at, part) in parts.iter().enumerate() {
        let list = List::of(part.reply).filter(|list| list.kind == kind);
        let list = list.ok_or(Trouble::Misshapen(at))?;
        // Each element has a byte at least, and all are there.
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

/// One of the keys that were found. They were drawn by chance, so a hash of all of them is a number drawn by
/// chance: always the first would mean never a key of the other servers.
fn drawn(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), Trouble> {
    let is_null = |part: &Part<'_>| matches!(part.reply, b"$-1\r\n" | b"_\r\n");
    if let Some(odd) = parts
        .iter()
        .position(|part| !matches!(part.reply[0], b'$' | b'_'))
    {
        return Err(Trouble::Misshapen(odd));
    }
    let found = parts.iter().filter(|part| !is_null(part));
    let count = found.clone().count() as u64;
    if count == 0 {
        out.extend_from_slice(parts[0].reply);
        return Ok(());
    }
    // FNV-1a, its upper half: the lower bits of a product say little.
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

/// Of a map with the function that runs, one in which one runs.
fn running(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), Trouble> {
    let kind = parts[0].reply[0];
    let mut shown = 0;
    for (at, part) in parts.iter().enumerate().rev() {
        let list = List::of(part.reply).filter(|list| list.kind == kind);
        let mut elements = list.ok_or(Trouble::Misshapen(at))?.elements();
        let name = elements.find(|element| bulk(element, b'$') == Some(b"running_script"));
        let function = name.and_then(|_| elements.next());
        let function = function.ok_or(Trouble::Misshapen(at))?;
        if !matches!(function, b"$-1\r\n" | b"*-1\r\n" | b"_\r\n") {
            shown = at;
        }
    }
    out.extend_from_slice(parts[shown].reply);
    Ok(())
}

/// Texts, as bulk strings, or in RESP3 verbatim.
fn texts(
    parts: &[Part<'_>],
    out: &mut Vec<u8>,
    merge: impl Fn(&[info::Text<'_>]) -> Vec<u8>,
) -> Result<(), Trouble> {
    let kind = parts[0].reply[0];
    let mut of_servers = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let text = text(part.reply).filter(|_| part.reply[0] == kind);
        of_servers.push(info::Text {
            server: part.server,
            text: text.ok_or(Trouble::Misshapen(at))?,
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

/// Appends the error of a part that is one.
pub(super) fn failed(parts: &[Part<'_>], part: usize, out: &mut Vec<u8>) -> Merged {
    let Part { server, reply } = parts[part];
    complain(server, error_text(reply), out);
    Merged::Failed { part }
}

/// Appends the error for a part that is not what the command answers.
pub(super) fn misshapen(parts: &[Part<'_>], part: usize, out: &mut Vec<u8>) -> Merged {
    complain(
        parts[part].server,
        b"its reply is not one to this command",
        out,
    );
    Merged::Misshapen { part }
}

/// Appends an error with the code of `text` in front, or ERR if it has none, and then with whose it is.
pub(super) fn complain(server: &str, text: &[u8], out: &mut Vec<u8>) {
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
        // In front they would send the client somewhere; what follows is not what it would look for.
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

/// What a server's error says, its code in front.
fn error_text(reply: &[u8]) -> &[u8] {
    let text = match reply.split_first() {
        Some((b'-', line)) => line,
        _ => bulk(reply, b'!').unwrap_or(reply),
    };
    text.strip_suffix(b"\r\n").unwrap_or(text)
}

// --- reading ---

/// Whether these bytes are one reply, and nothing else.
fn is_whole(reply: &[u8]) -> bool {
    Scanner::default().scan(reply) == Ok(Scanned::Whole(reply.len())) && !reply.is_empty()
}

/// An aggregate.
pub(super) struct List<'a> {
    pub(super) kind: u8,
    /// As its header says: of a map, the pairs.
    count: usize,
    /// How many values follow: of a map, twice as many.
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

    /// The elements of a reply that is whole.
    pub(super) fn elements(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut scanner = Scanner::default();
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

/// A length and what is behind its line.
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
    // `txt:` says how to show it.
    bulk(reply, b'$').or_else(|| bulk(reply, b'=')?.get(4..))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::commands::{Command, Spread, all, lookup, resolve};
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

    /// What becomes of these replies; `|` stands for the end of a line.
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

    #[test]
    fn elements_come_back_in_the_order_of_the_keys() {
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
        // Whatever an element is, it stays in one piece.
        assert_eq!(
            mget(
                &[1, 0, 1],
                &["*1|*2|:1|%1|+a|:2|", "*2|=5|txt:x|$15|*1|%2|~3|a||"]
            ),
            "*3|=5|txt:x|*2|:1|%1|+a|:2|$15|*1|%2|~3|a||"
        );
    }

    #[test]
    fn a_part_that_does_not_fit_the_keys_is_an_error_that_names_its_server() {
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
                format!("-ERR respool: {server}: its reply is not one to this command|")
            );
        }
        let (merged, reply) = merged("MGET", &[0, 2], &["*1|:1|", "*1|:1|"]);
        assert_eq!(merged, Merged::Refused, "{reply}");
    }

    #[test]
    fn an_error_keeps_its_code_and_says_whose_it_is() {
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

    #[test]
    fn numbers_are_added_or_compared() {
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

    #[test]
    fn who_listens_is_counted_channel_by_channel() {
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

    #[test]
    fn a_sum_that_is_too_large_is_an_error() {
        for most in [i64::MAX, i64::MIN] {
            let (merged, reply) = merged(
                "DBSIZE",
                &[],
                &[&format!(":{most}|"), &format!(":{}|", most.signum())],
            );
            assert_eq!(merged, Merged::Refused);
            assert_eq!(reply, "-ERR respool: the sum of all servers is too large|");
        }
    }

    #[test]
    fn elements_of_all_are_one_list() {
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

    #[test]
    fn who_was_to_be_stopped_at_one_server_was_stopped() {
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

    #[test]
    fn figures_are_added_and_shares_are_made_of_the_sums() {
        let stats = |total: u32, keys: u32, share: &str| {
            format!(
                "*14|$15|total.allocated|:{total}|$17|startup.allocated|:10|$10|keys.count|:{keys}|\
                $18|keys.bytes-per-key|:{}|$13|dataset.bytes|:{total}|$18|dataset.percentage|{share}|\
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
        // A database that one alone has; in RESP3; with a share that nobody knows.
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

    #[test]
    fn a_function_that_runs_is_seen_wherever_it_does() {
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

    #[test]
    fn a_random_key_is_of_any_server_that_has_one() {
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

    #[test]
    fn a_report_of_each_server_stands_under_its_name() {
        assert_eq!(
            whole("LATENCY DOCTOR", &["$4|fine|", "$5|worse|"]),
            "$46|# 127.0.0.1:6380\nfine\n\n# 127.0.0.1:6381\nworse\n|"
        );
        let (merged, _) = merged("LATENCY DOCTOR", &[], &["$4|fine|", "=8|txt:fine|"]);
        assert_eq!(merged, Merged::Misshapen { part: 1 });
    }

    /// A command that the table begins to send to several servers is merged, or this notices.
    #[test]
    fn what_is_sent_to_several_servers_is_merged() {
        for id in all() {
            let Command { name, fan_out, .. } = id.get();
            if matches!(fan_out.spread, Spread::Owners | Spread::All) {
                assert!(Way::of(id).is_some(), "{name}");
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

    /// What a server answers, and what is then in it.
    fn answer(store: &mut Store, request: &[u8], version: Version) -> Vec<u8> {
        let mut scanner = request::Scanner::default();
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
            other => panic!("{}", other.escape_ascii()),
        }
        out
    }

    proptest! {
        #[test]
        fn several_servers_answer_as_one_would(
            requests in prop::collection::vec(
                (0..7usize, prop::collection::vec((0..40u8, prop::collection::vec(any::<u8>(), 0..20)), 1..30)), 1..12),
            servers in prop::collection::vec(0..9u16, 40),
            resp3 in any::<bool>(),
        ) {
            const NAMES: [&str; 7] = ["mget", "MSET", "DEL", "UNLINK", "EXISTS", "TOUCH", "MSETEX"];
            const NAMED: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
            let version = if resp3 { Version::Resp3 } else { Version::Resp2 };
            let (mut one, mut several) = (Store::new(), vec![Store::new(); NAMED.len()]);
            let (mut split, mut merger) = (Split::default(), Merger::default());
            for (name, keys) in requests {
                let name = NAMES[name];
                let mut words = vec![name.as_bytes().to_vec()];
                if name == "MSETEX" {
                    words.push(keys.len().to_string().into_bytes());
                }
                for (key, value) in &keys {
                    words.push([&[*key], "longer".repeat(usize::from(key % 5)).as_bytes()].concat());
                    if name.starts_with("MSET") {
                        words.push(value.clone());
                    }
                }
                if name == "MSETEX" {
                    words.push(b"KEEPTTL".to_vec());
                }
                let mut bytes = Vec::new();
                encode::request(&mut bytes, &words);
                let mut scanner = request::Scanner::default();
                let _ = scanner.scan(&bytes, true);

                let id = lookup(name.as_bytes()).unwrap();
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

        /// Whatever came, the client gets one whole reply, and what was there before stays.
        #[test]
        fn no_bytes_make_it_panic(
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
                let end = Scanner::default().scan(&out);
                let name = id.get().name;
                prop_assert_eq!(end, Ok(Scanned::Whole(out.len())), "{}: {:?} {}", name, merged, out.escape_ascii());
            }
        }

        /// The same with replies that are whole, so that what is behind that check is reached.
        #[test]
        fn no_whole_reply_makes_it_panic(
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
                let end = Scanner::default().scan(&out);
                let name = id.get().name;
                prop_assert_eq!(end, Ok(Scanned::Whole(out.len())), "{}: {:?} {}", name, merged, out.escape_ascii());
            }
        }
    }
}
