//! Servers that see keys without the prefix by which these are theirs ([`Part::strip`]).
//!
//! ```text
//!   route   GET user:1     by its whole key: to the servers of `user:`, which take it off
//!   here    GET 1          what is placed, queued, kept or asked again from here on
//!   reply   as it is, or with `user:` in front of the keys that it names
//! ```
//!
//! Whoever decides where a request goes sees whole keys; whoever has it behind that sees what the server is to see. So
//! nothing is shortened twice, and nothing that was is routed by how it begins. A link goes to one server: what comes
//! on it is put right by that.
//!
//! What cannot be known is refused: a client sees what it would see if the keys had their prefix, or an error.
//!
//! [`Part::strip`]: crate::settings::Part::strip

use respool_protocol::commands::{Command, Names, Spread, id};
use respool_protocol::encode;
use respool_protocol::glob::{Left, Pattern};
use respool_protocol::prefix::{self, Unstripped};
use respool_protocol::request::{Found, Scanner, Span};

use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::{Class, Entry};
use crate::gather::Gather;
use crate::pool::ServerId;
use crate::requests::{Placed, Request};
use crate::route::{ELSEWHERE, UNKNOWN_KEYS, looks_elsewhere};
use crate::session::Flags;
use crate::slots::Key;
use crate::unknown::What;

/// Memory for a request that is made, between two of them.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// To a request that servers refuse, too, as far as they are known.
pub(crate) const UNKNOWN_ARGUMENTS: &[u8] =
    b"ERR respool: which arguments are keys cannot be said, and servers of the pool see keys without their prefix: \
    the number of arguments, or of keys, is wrong, or the subcommand is not known";

/// To what would take keys to a server that knows nothing of prefixes.
const HANDED_ON: &[u8] =
    b"ERR respool: MIGRATE is refused where servers see keys without their prefix: \
    the other server would get them so, too: ask the server itself";

/// We would have routed it wrongly.
const FOREIGN: &[u8] =
    b"ERR respool: a key of this command does not begin as those of its server do: nothing was executed";

/// To a pattern in which a class has bytes that are no ASCII, or that is very long.
const UNCLEAR: &[u8] =
    b"ERR respool: what this pattern finds behind the prefix of a server cannot be said for all servers: \
    write the prefix in front, letter by letter";

/// To a SCAN in which MATCH cannot be found.
const NO_SCAN: &[u8] =
    b"ERR respool: SCAN takes MATCH, COUNT and TYPE, each with a value, where servers see keys without their prefix";

/// What a client is told whose command was executed, and whose answer may name keys by other names.
const MISSHAPEN: &[u8] =
    b"-UNKNOWN respool: the command was executed, but its reply does not have the shape that it should: \
    the keys in it cannot be named\r\n";

impl Engine {
    /// Whether a server of a session's pool sees keys without their prefix.
    pub(crate) fn strips(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.flags.any(Flags::STRIPS))
    }

    /// Whether nothing is special about a session but that.
    pub(crate) fn strips_by_key(&self, key: Key) -> bool {
        let way = Flags::ROUTED | Flags::STRIPS;
        let session = self.sessions.get(key);
        session.is_some_and(|session| {
            session.flags & Flags::OFF_PATH == way && session.pins.is_empty()
        })
    }

    /// The short way of a request whose only key is that argument. False: it is to go the long way.
    pub(crate) fn put_stripped(
        &mut self,
        key: Key,
        request: &Request<'_>,
        at: usize,
        class: Class,
    ) -> bool {
        let Some(session) = self
            .sessions
            .get(key)
            .filter(|_| request.command.names == Names::None)
        else {
            return false;
        };
        let (name, any) = (request.arg(at), session.next_seq);
        let (part, _) = self.pools.owner_of(session.pool, name, || any);
        let prefix = &part.unseen[..];
        let how = (request.id, class);
        if prefix.is_empty() {
            return self.put_by_key(key, request.bytes, name, how);
        }
        let Some(shorter) = name.strip_prefix(prefix) else {
            return false;
        };
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        prefix::replace(
            request.bytes,
            request.spans,
            [(at, shorter)].into_iter(),
            &mut bytes,
        );
        let placed = self.put_by_key(key, &bytes, name, how);
        bytes.clear();
        bytes.shrink_to(SCRATCH_BYTES_KEPT);
        self.scratch = bytes;
        placed
    }

    /// What the keys of a server begin with, and it does not see.
    fn strip_of(&self, server: ServerId) -> &[u8] {
        &self.pools[usize::from(self.server(server).pool)].unseen
    }

    /// The same of the server to which a session has turned.
    fn strip_before(&self, key: Key) -> &[u8] {
        let session = self.sessions.get(key);
        session.map_or(&[], |session| self.strip_of(session.server))
    }

    /// A request that has been routed: from here on it is what its server is to see.
    pub(crate) fn place_stripped(
        &mut self,
        key: Key,
        request: &Request<'_>,
        is_itselfs: bool,
    ) -> Placed {
        let is_in_multi = self.is_in_multi(key);
        let has_wrong_number = !request.command.arity_ok(request.spans.len());
        // What is answered here has none; and what is refused here is not routed either.
        let stays = request.command.fan_out.spread == Spread::Here
            || request.id == id::WATCH && is_in_multi;
        if stays {
            return self.place_at_server(key, request, is_itselfs);
        }
        let mut bytes = Vec::new();
        let prefix = self.strip_before(key);
        if !prefix.is_empty() && looks_elsewhere(request) {
            return self.refuse_stripped(key, ELSEWHERE);
        }
        let shorter = shortened(
            request.command,
            request.bytes,
            request.spans,
            prefix,
            &mut bytes,
        );
        match shorter {
            Ok(false) => self.place_at_server(key, request, is_itselfs),
            Ok(true) => scanned(&bytes, |spans| {
                let bytes = &bytes;
                let request = Request {
                    bytes,
                    spans,
                    ..*request
                };
                self.place_at_server(key, &request, is_itselfs)
            }),
            Err(Unstripped::Unknown) if has_wrong_number && !is_in_multi => {
                self.place_bare(key, request)
            }
            Err(why) => self.refuse_stripped(key, refusal(why)),
        }
    }

    /// The server says in its own words that the number of arguments is wrong; without any, it is about no key.
    fn place_bare(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let names = request.command.name.split('|').count();
        let words: Vec<&[u8]> = request.args().take(names).collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        self.place_on_link(key, &bytes, false, None)
    }

    pub(crate) fn refuse_stripped(&mut self, key: Key, text: &[u8]) -> Placed {
        self.counters.refused += 1;
        self.refuse_queued(key, text)
    }

    /// The beginning of a request that is too large to be held, as its server is to see it, if that is something else.
    pub(crate) fn strip_large(
        &self,
        key: Key,
        what: What,
        (argc, spans): (usize, &[Span]),
        head: &[u8],
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        let What::Row(id) = what else {
            return match self.strips(key) {
                true => Err(UNKNOWN_KEYS.to_vec()),
                false => Ok(None),
            };
        };
        if !self.strips(key) {
            return Ok(None);
        }
        let prefix = self.strip_before(key);
        let mut bytes = Vec::new();
        match shorten(id.get(), head, argc, spans, prefix, &mut bytes) {
            Ok(is_another) => Ok(is_another.then_some(bytes)),
            Err(why) => Err(refusal(why).to_vec()),
        }
    }

    /// The share of a server in a request that was divided, if it is another one to it.
    pub(crate) fn strip_share(
        &self,
        server: ServerId,
        command: &Command,
        share: &[u8],
    ) -> Result<Option<Vec<u8>>, &'static [u8]> {
        let prefix = self.strip_of(server);
        if prefix.is_empty() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let is_another = scanned(share, |spans| {
            shortened(command, share, spans, prefix, &mut bytes)
        });
        let is_another = is_another.map_err(refusal)?;
        Ok(is_another.then_some(bytes))
    }

    /// KEYS as a server is to be asked, if that is otherwise than the client did.
    pub(crate) fn strip_keys(
        &self,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<Option<Vec<u8>>, &'static [u8]> {
        let prefix = self.strip_of(server);
        let asked = request.spans.get(1).map(|_| request.arg(1));
        let (Some(asked), false) = (asked, prefix.is_empty()) else {
            return Ok(None);
        };
        let (left, _) = left_of(asked, prefix)?;
        let mut bytes = Vec::new();
        let others = std::iter::once((1, left.as_slice()));
        prefix::replace(request.bytes, request.spans, others, &mut bytes);
        Ok(Some(bytes))
    }

    /// SCAN as the server is to be asked to which its session has turned, if that is otherwise than the client did; and the
    /// client's pattern, if what the server finds is to be looked through by it.
    pub(crate) fn strip_scan(
        &self,
        key: Key,
        request: &Request<'_>,
    ) -> Result<Scan, &'static [u8]> {
        let prefix = self.strip_before(key);
        if prefix.is_empty() {
            return Ok(Scan::default());
        }
        let options = &request.spans[2.min(request.spans.len())..];
        let (mut patterns, mut asked) = (Vec::new(), None);
        for (index, option) in options.chunks(2).enumerate() {
            let (word, value) = match option {
                [word, value] => (word.of(request.bytes), value.of(request.bytes)),
                _ => return Err(NO_SCAN),
            };
            if word.eq_ignore_ascii_case(b"match") {
                // The last one counts.
                patterns.push(2 + 2 * index + 1);
                asked = Some(value);
            } else if !word.eq_ignore_ascii_case(b"count") && !word.eq_ignore_ascii_case(b"type") {
                return Err(NO_SCAN);
            }
        }
        let Some(asked) = asked else {
            return Ok(Scan::default());
        };
        let (left, finds_more) = left_of(asked, prefix)?;
        let others = patterns.into_iter().map(|index| (index, left.as_slice()));
        let mut bytes = Vec::new();
        prefix::replace(request.bytes, request.spans, others, &mut bytes);
        Ok(Scan {
            request: Some(bytes),
            sifted_by: finds_more.then(|| asked.into()),
        })
    }

    /// What becomes of the reply to a request for the server to which a session has turned, if it names keys.
    pub(crate) fn names_at(&self, key: Key, command: &Command) -> Option<Names> {
        let names = command.names != Names::None && !self.strip_before(key).is_empty();
        names.then_some(command.names)
    }

    pub(crate) fn naming_duty(&self, key: Key, command: &Command) -> Option<Duty> {
        self.names_at(key, command).map(Duty::Named)
    }

    /// A reply that came on a link, with the keys that it names as the client calls them. `sifted_by`: of a list of keys, those
    /// that this pattern finds.
    pub(crate) fn named_by(
        &self,
        link: Key,
        names: Names,
        sifted_by: Option<&[u8]>,
        reply: &[u8],
    ) -> Vec<u8> {
        let server = self.links.get(link).map(|link| link.key.server);
        let prefix = server.map_or(&[][..], |server| self.strip_of(server));
        with_prefix(reply, names, prefix, sifted_by)
    }

    /// The same of what a server has answered to its part of a request, if that is another one to the client.
    pub(crate) fn part_named(&self, entry: Entry, index: u16, reply: &[u8]) -> Option<Vec<u8>> {
        let session = self.sessions.get(entry.session)?;
        if !session.flags.any(Flags::STRIPS) {
            return None;
        }
        let gathers = &session.rare.as_ref()?.gathers;
        let gather = &gathers[Gather::find(gathers, session.head_seq, entry.seq)?];
        let (server, names) = gather.part(index)?;
        let prefix = self.strip_of(server);
        if prefix.is_empty() || names == Names::None {
            return None;
        }
        let finds_more = |asked: &&[u8]| left_of(asked, prefix).is_ok_and(|(_, more)| more);
        let sifted_by = gather.sifted_by().filter(finds_more);
        Some(with_prefix(reply, names, prefix, sifted_by))
    }
}

/// See [`Engine::strip_scan`].
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) request: Option<Vec<u8>>,
    pub(crate) sifted_by: Option<Box<[u8]>>,
}

fn with_prefix(reply: &[u8], names: Names, prefix: &[u8], sifted_by: Option<&[u8]>) -> Vec<u8> {
    if prefix.is_empty() {
        return reply.to_vec();
    }
    let mut named = Vec::with_capacity(reply.len());
    let pattern = sifted_by.map(Pattern::new);
    let wanted = |key: &[u8]| pattern.as_ref().is_none_or(|pattern| pattern.finds(key));
    match prefix::put_back(reply, names, prefix, wanted, &mut named) {
        Ok(()) => named,
        Err(prefix::Misshapen) => MISSHAPEN.to_vec(),
    }
}

/// A whole request as the server of that prefix is to see it. Whether it is another one.
fn shortened(
    command: &Command,
    bytes: &[u8],
    spans: &[Span],
    prefix: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, Unstripped> {
    shorten(command, bytes, spans.len(), spans, prefix, out)
}

fn shorten(
    command: &Command,
    bytes: &[u8],
    argc: usize,
    spans: &[Span],
    prefix: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, Unstripped> {
    // Asked of every request: had it keys that are not known, they might be those of any server.
    let keys = prefix::keys_of(command, bytes, argc, spans)?;
    if prefix.is_empty() || keys.is_empty() {
        return Ok(false);
    }
    prefix::take_off(command, bytes, spans, &keys, prefix, out)?;
    Ok(true)
}

fn refusal(why: Unstripped) -> &'static [u8] {
    match why {
        Unstripped::Unknown => UNKNOWN_ARGUMENTS,
        Unstripped::HandsOn => HANDED_ON,
        Unstripped::Foreign => FOREIGN,
    }
}

/// What a server is asked for a pattern, and whether it finds more than that.
fn left_of(asked: &[u8], prefix: &[u8]) -> Result<(Vec<u8>, bool), &'static [u8]> {
    match Pattern::new(asked).behind(prefix) {
        Left::Same(left) => Ok((left, false)),
        Left::More(left) => Ok((left, true)),
        Left::Unclear => Err(UNCLEAR),
    }
}

/// What is made of the arguments of a request that is whole.
fn scanned<T>(bytes: &[u8], make: impl FnOnce(&[Span]) -> T) -> T {
    let mut scanner = Scanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(bytes, true) else {
        unreachable!("what was made of a whole request is one");
    };
    make(scanner.spans())
}
