//! Servers that see keys without the prefix that routes to them ([`PrefixPool::strip`]).
//!
//! ```text
//!   route    GET user:1     by its whole key: to the servers of `user:`, where keys lose it
//!   server   GET 1          the bytes from here on: sent, queued, kept or retried
//!   reply    unchanged, or with `user:` in front of the keys that it names
//! ```
//!
//! Code that routes a request sees whole keys. Code behind the routing sees keys as the server
//! does. So no prefix is removed twice, and no shortened key is routed. A link goes to one server,
//! so its server says which prefix belongs in front of the keys in its replies.
//!
//! respool refuses a request with keys that it cannot find. A client gets the same replies as from
//! a server that has the keys with their prefix, or it gets an error.
//!
//! [`PrefixPool::strip`]: crate::base::settings::PrefixPool::strip

use respool_protocol::commands::{Command, Names, Retry, Spread, id};
use respool_protocol::encode;
use respool_protocol::glob::{Left, Pattern};
use respool_protocol::prefix::{self, Unstripped};
use respool_protocol::request::Span;

use crate::base::error_text::{PATTERN_KEYS, UNKNOWN_KEYS};
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::ingress::{Dispatched, Request, scanned};
use crate::data_plane::ledger::Entry;
use crate::data_plane::owners::{LeadingCommand, looks_elsewhere};
use crate::data_plane::session::Flags;
use crate::routing::pool::ServerId;

/// The error for a request with keys that cannot be found. The servers refuse it, too, as far as
/// they are known.
pub(crate) const UNKNOWN_ARGUMENTS: &[u8] =
    b"ERR respool: the keys of this command cannot be found, and servers of the pool see keys without \
    their prefix: the number of arguments or of keys is wrong, or the subcommand is unknown";

/// The error for MIGRATE, which would give shortened keys to a server without prefixes.
const HANDED_ON: &[u8] =
    b"ERR respool: MIGRATE is refused where servers see keys without their prefix: \
    the target would get the keys without it, too: send MIGRATE to the server itself";

/// The error for a key without the prefix of its server: the request was routed wrongly.
const FOREIGN: &[u8] =
    b"ERR respool: a key of this command does not begin with the prefix of its server: \
    nothing was executed";

/// The error for a pattern that is very long, or in which a class has bytes that are not ASCII.
const UNCLEAR: &[u8] =
    b"ERR respool: this pattern cannot be translated for servers that see keys without their prefix: \
    begin it with the prefix, letter by letter";

/// The error for a SCAN in which MATCH cannot be found.
const NO_SCAN: &[u8] =
    b"ERR respool: with `strip`, SCAN takes only MATCH, COUNT and TYPE, each with a value";

/// The error for an executed command with a reply that may name keys without their prefix.
const MISSHAPEN: &[u8] =
    b"-UNKNOWN respool: the command was executed, but its reply has an unexpected shape: \
    the keys in it cannot be given their prefix\r\n";

/// A routed request as its server shall see it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stripped {
    /// As the client wrote it.
    Same,
    /// Without the prefix of its server.
    Shorter(Vec<u8>),
    /// The command's name alone. The server answers with its own error about the number of
    /// arguments, and sees no key.
    Bare(Vec<u8>),
    /// No server gets it. Its client gets this error.
    Refused(&'static [u8]),
}

/// A SCAN for a server without the prefix: see [`DataPlane::strip_scan`].
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

/// Writes a whole request without the prefix of its server to `out`. Returns whether it differs
/// from the original.
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
    // Even a request for a server without prefix is looked through: keys that cannot be found may
    // belong to any server.
    let keys = prefix::keys_of(command, bytes, argc, spans)?;
    if prefix.is_empty() || keys.is_empty() {
        return Ok(false);
    }
    prefix::take_off(command, bytes, spans, &keys, prefix, out)?;
    Ok(true)
}

/// A request with the command's name alone.
fn bare(request: &Request<'_>) -> Vec<u8> {
    let names = request.command.name.split('|').count();
    let words: Vec<&[u8]> = request.args().take(names).collect();
    let mut bytes = Vec::new();
    encode::request(&mut bytes, &words);
    bytes
}

fn refusal(why: Unstripped) -> &'static [u8] {
    match why {
        Unstripped::Unknown => UNKNOWN_ARGUMENTS,
        Unstripped::HandsOn => HANDED_ON,
        Unstripped::Foreign => FOREIGN,
    }
}

/// The pattern for a server that sees keys without the prefix, and whether it finds more keys than
/// the client's.
fn left_of(pattern: &[u8], prefix: &[u8]) -> Result<(Vec<u8>, bool), &'static [u8]> {
    match Pattern::new(pattern).behind(prefix) {
        Left::Same(left) => Ok((left, false)),
        Left::More(left) => Ok((left, true)),
        Left::Unclear => Err(UNCLEAR),
    }
}

impl Stripped {
    /// Removes the prefix of a server from a request that is routed there.
    fn of(request: &Request<'_>, prefix: &[u8], is_in_multi: bool) -> Stripped {
        let has_wrong_number = !request.command.arity_ok(request.spans.len());
        // A command that respool answers has no keys. A WATCH that respool refuses is not routed.
        let stays = request.command.fan_out.spread == Spread::Local
            || request.id == id::WATCH && is_in_multi;
        if stays {
            return Stripped::Same;
        }
        let mut bytes = Vec::new();
        if !prefix.is_empty() && looks_elsewhere(request) {
            return Stripped::Refused(PATTERN_KEYS);
        }
        let shorter = shortened(
            request.command,
            request.bytes,
            request.spans,
            prefix,
            &mut bytes,
        );
        match shorter {
            Ok(false) => Stripped::Same,
            Ok(true) => Stripped::Shorter(bytes),
            Err(Unstripped::Unknown) if has_wrong_number && !is_in_multi => {
                Stripped::Bare(bare(request))
            }
            Err(why) => Stripped::Refused(refusal(why)),
        }
    }
}

impl DataPlane {
    /// Refuses a request with keys that cannot be given to a server without their prefix.
    pub(crate) fn refuse_stripped(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        self.counters.commands_refused += 1;
        self.refuse_queued(id, text)
    }

    /// Removes the prefix of its server from a routed request.
    pub(crate) fn strip(
        &self,
        session: SessionId,
        request: &Request<'_>,
        is_in_multi: bool,
    ) -> Stripped {
        Stripped::of(
            request,
            self.removed_prefix_of_session(session),
            is_in_multi,
        )
    }

    /// The beginning of a request that is too large to hold, without the prefix of its server.
    /// `None`: it is the same.
    pub(crate) fn strip_large(
        &self,
        session_id: SessionId,
        opening: LeadingCommand,
        (argc, spans): (usize, &[Span]),
        head: &[u8],
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        let LeadingCommand::Row(id) = opening else {
            return match self.removes_prefix(session_id) {
                true => Err(UNKNOWN_KEYS.to_vec()),
                false => Ok(None),
            };
        };
        if !self.removes_prefix(session_id) {
            return Ok(None);
        }
        let prefix = self.removed_prefix_of_session(session_id);
        let mut bytes = Vec::new();
        match shorten(id.get(), head, argc, spans, prefix, &mut bytes) {
            Ok(is_another) => Ok(is_another.then_some(bytes)),
            Err(why) => Err(refusal(why).to_vec()),
        }
    }

    /// A server's share of a divided request, without the prefix of the server. `None`: it is the
    /// same.
    pub(crate) fn strip_share(
        &self,
        server: ServerId,
        command: &Command,
        share: &[u8],
    ) -> Result<Option<Vec<u8>>, &'static [u8]> {
        let prefix = self.removed_prefix_of(server);
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

    /// KEYS with the pattern for a server that sees keys without the prefix. `None`: it is the
    /// same.
    pub(crate) fn strip_keys(
        &self,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<Option<Vec<u8>>, &'static [u8]> {
        let prefix = self.removed_prefix_of(server);
        let pattern = request.spans.get(1).map(|_| request.arg(1));
        let (Some(pattern), false) = (pattern, prefix.is_empty()) else {
            return Ok(None);
        };
        let (left, _) = left_of(pattern, prefix)?;
        let mut bytes = Vec::new();
        let replaced = std::iter::once((1, left.as_slice()));
        prefix::replace(request.bytes, request.spans, replaced, &mut bytes);
        Ok(Some(bytes))
    }

    /// SCAN for the server to which its session has switched, and the client's pattern if the reply
    /// must be filtered by it. No request: the client's is right for the server.
    pub(crate) fn strip_scan(
        &self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Result<Scan, &'static [u8]> {
        let prefix = self.removed_prefix_of_session(id);
        if prefix.is_empty() {
            return Ok(Scan::default());
        }
        let options = &request.spans[2.min(request.spans.len())..];
        let (mut patterns, mut pattern) = (Vec::new(), None);
        for (index, option) in options.chunks(2).enumerate() {
            let (word, value) = match option {
                [word, value] => (word.of(request.bytes), value.of(request.bytes)),
                _ => return Err(NO_SCAN),
            };
            if word.eq_ignore_ascii_case(b"match") {
                // Redis uses the last MATCH. All of them are replaced.
                patterns.push(2 + 2 * index + 1);
                pattern = Some(value);
            } else if !word.eq_ignore_ascii_case(b"count") && !word.eq_ignore_ascii_case(b"type") {
                return Err(NO_SCAN);
            }
        }
        let Some(pattern) = pattern else {
            return Ok(Scan::default());
        };
        let (left, finds_more) = left_of(pattern, prefix)?;
        let replaced = patterns.into_iter().map(|index| (index, left.as_slice()));
        let mut bytes = Vec::new();
        prefix::replace(request.bytes, request.spans, replaced, &mut bytes);
        Ok(Scan {
            request: Some(bytes),
            sifted_by: finds_more.then(|| pattern.into()),
        })
    }

    /// Which keys the reply to a request names, if the current server of the session sees keys
    /// without their prefix.
    pub(crate) fn names_at(&self, id: SessionId, command: &Command) -> Option<Names> {
        let names = command.names != Names::None && !self.removed_prefix_of_session(id).is_empty();
        names.then_some(command.names)
    }

    /// Sends a request on its session's link. If its reply names keys, these get their prefix back.
    pub(crate) fn dispatch_to_link(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let named = self.naming_completion(id, request.command);
        let reads = request.command.retry == Retry::Read;
        self.dispatch_on_link(id, request.bytes, reads, named)
    }

    pub(crate) fn naming_completion(&self, id: SessionId, command: &Command) -> Option<Completion> {
        let names = self.names_at(id, command)?;
        Some(Completion::Scatter(ScatterCompletion::Named(names)))
    }

    /// A reply of a link, with the prefix in front of the keys that it names. `sifted_by`: the
    /// pattern that filters a list of keys.
    pub(crate) fn named_by(
        &self,
        link: LinkId,
        names: Names,
        sifted_by: Option<&[u8]>,
        reply: &[u8],
    ) -> Vec<u8> {
        let server = self.links.get(link).map(|link| link.kind.server);
        let prefix = server.map_or(&[][..], |server| self.removed_prefix_of(server));
        with_prefix(reply, names, prefix, sifted_by)
    }

    /// A server's part of a scattered reply, with the prefix in front of the keys that it names.
    /// `None`: it is the same.
    pub(crate) fn part_named(&self, entry: Entry, index: u16, reply: &[u8]) -> Option<Vec<u8>> {
        let session = self.sessions.get(entry.session)?;
        if !session.state.any(Flags::REWRITES_KEYS) {
            return None;
        }
        let scattered = self.scattered(entry)?;
        let (server, names) = scattered.share(index)?;
        let prefix = self.removed_prefix_of(server);
        if prefix.is_empty() || names == Names::None {
            return None;
        }
        let finds_more = |pattern: &&[u8]| left_of(pattern, prefix).is_ok_and(|(_, more)| more);
        let sifted_by = scattered.sifted_by().filter(finds_more);
        Some(with_prefix(reply, names, prefix, sifted_by))
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands;

    use super::*;

    fn stripped(words: &[&str], prefix: &[u8], is_in_multi: bool) -> Stripped {
        let bytes = request(words);
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let id = commands::resolve(args.len(), |at| args[at]).expect("the table has it");
        scanned(&bytes, |spans| {
            let request = Request {
                bytes: &bytes,
                spans,
                id,
                command: id.get(),
            };
            Stripped::of(&request, prefix, is_in_multi)
        })
    }

    fn request(words: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode::request(&mut bytes, words);
        bytes
    }

    #[test]
    fn server_sees_shorter_keys_or_nothing_of_them() {
        let of = |words: &[&str]| stripped(words, b"user:", false);
        let shorter = |words: &[&str]| Stripped::Shorter(request(words));
        assert_eq!(of(&["GET", "user:1"]), shorter(&["GET", "1"]));
        let both = of(&["MSET", "user:1", "user:a", "user:2", "b"]);
        assert_eq!(both, shorter(&["MSET", "1", "user:a", "2", "b"]));
        assert_eq!(of(&["PING"]), Stripped::Same);
        assert_eq!(of(&["SELECT", "user:1"]), Stripped::Same);
        assert_eq!(of(&["GET", "other:1"]), Stripped::Refused(FOREIGN));
        let by = of(&["SORT", "user:1", "BY", "user:*"]);
        assert_eq!(by, Stripped::Refused(PATTERN_KEYS));
        assert_eq!(stripped(&["GET", "1"], b"", false), Stripped::Same);
    }

    #[test]
    fn wrong_number_of_arguments_is_for_the_server_to_refuse() {
        let words = ["EVAL", "return 1", "x", "user:1"];
        let unknown = Stripped::Refused(UNKNOWN_ARGUMENTS);
        assert_eq!(stripped(&words, b"user:", false), unknown);
        let few = ["EVAL", "return 1"];
        let bare = Stripped::Bare(request(&["EVAL"]));
        assert_eq!(stripped(&few, b"user:", false), bare);
        assert_eq!(stripped(&few, b"user:", true), unknown);
    }

    #[test]
    fn refused_watch_in_a_transaction_stays_whole() {
        let watch = ["WATCH", "other:1"];
        assert_eq!(stripped(&watch, b"user:", true), Stripped::Same);
        assert_eq!(
            stripped(&watch, b"user:", false),
            Stripped::Refused(FOREIGN)
        );
    }
}
