//! Whether a refusal is believed: an error reply that says that its server executed nothing.
//!
//! A request that runs code may return any error text that its author likes, after it ran. So the
//! text alone proves nothing. respool sends such a request again, or follows its redirect, only
//! after a proof. The proof is the answer to a second question. For most refusals it is a *twin* of
//! the request: the same command and keys, and a body that does nothing. If the server refuses the
//! twin, too, it did not execute the request.
//!
//! ```text
//!   request         MOVED ASK TRYAGAIN CLUSTERDOWN  READONLY      UNBLOCKED  NOSCRIPT
//!                   LOADING MASTERDOWN
//!   plain           believed                        believed      believed   answer
//!   MULTI ... EXEC  believed                        believed      believed   answer
//!   code            the twin decides                ask the role  answer     SCRIPT EXISTS decides
//! ```
//!
//! An error of EXEC is believed although its block may hold scripts: the top-level error says that
//! nothing of the block ran. The reply to an executed EXEC is an array, even if scripts returned
//! errors.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::{self, id};
use respool_protocol::request::{Found, RequestScanner};
use respool_protocol::{encode, number};

/// The kind of a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedRequest {
    /// A command of the table with error texts that are the server's own.
    Plain,
    /// A transaction: the refusal is the reply to its EXEC.
    Block,
    /// A request that runs code, or a command that the table does not have.
    Code,
}

/// The reaction of respool to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belief {
    /// The server executed nothing.
    Believed,
    /// The server gets a second question, and the reply waits for the answer.
    Confirm,
    /// The client gets the reply. respool asks the server for its role.
    AskRole,
    /// The client gets the reply, and nothing follows.
    Answer,
}

/// Decides which refusals are believed. No other code decides that.
pub(crate) fn belief(request: RefusedRequest, refusal: Refusal) -> Belief {
    match (request, refusal) {
        (RefusedRequest::Plain | RefusedRequest::Block, _) => Belief::Believed,
        (RefusedRequest::Code, Refusal::ReadOnly) => Belief::AskRole,
        // A script never blocks, so this text is its own. A command that the table does not have
        // may block: its client gets the reply, too.
        (RefusedRequest::Code, Refusal::Unblocked) => Belief::Answer,
        (
            RefusedRequest::Code,
            Refusal::Moved
            | Refusal::Ask
            | Refusal::TryAgain
            | Refusal::ClusterDown
            | Refusal::Loading
            | Refusal::MasterDown,
        ) => Belief::Confirm,
    }
}

/// Whether the refusal of a twin proves the refusal of its request. Refusals about slots may
/// differ: a slot may move on between the two.
pub(crate) fn proves(twin: Refusal, refusal: Refusal) -> bool {
    let is_of_slots = |refusal| {
        matches!(
            refusal,
            Refusal::Moved | Refusal::Ask | Refusal::TryAgain | Refusal::ClusterDown
        )
    };
    twin == refusal || is_of_slots(twin) && is_of_slots(refusal)
}

/// A request that does nothing, and that the server refuses if it refuses this one. `keys`: the
/// places of the keys of a command that the table does not have. `None`: the request has no twin.
///
/// ```text
///   EVAL body 2 a b x         EVAL "return 0" 2 a b
///   EVALSHA digest 1 a x      EVALSHA 000...0 1 a         no script has this digest
///   FCALL name 1 a x          FCALL - 1 a                 no function has this name
///   EVAL_RO body 1 a x        EXISTS a                    a read, as its request is
///   TOOL.ADD a x              EXISTS a
/// ```
///
/// A twin with the same command needs the same rights, and the server finds the same keys in it.
/// The twin of a script that only reads is EXISTS, which most users with rights to read may run.
/// With EXISTS, `commandstats` counts no run of a script that did not run.
pub(crate) fn twin(request: &[u8], keys: impl Iterator<Item = usize>) -> Option<Vec<u8>> {
    let mut scanner = RequestScanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
        return None;
    };
    let spans = scanner.spans();
    let arg = |at: usize| spans.get(at).map_or(&[][..], |span| span.of(request));
    let body: &[u8] = match commands::resolve(spans.len(), arg) {
        Some(id::EVAL) => b"return 0",
        Some(id::EVALSHA) => &[b'0'; 40],
        Some(id::FCALL) => b"-",
        Some(id::EVAL_RO | id::EVALSHA_RO | id::FCALL_RO) => b"",
        Some(_) => return None,
        None => {
            let mut args: Vec<&[u8]> = vec![b"EXISTS"];
            args.extend(keys.filter(|at| *at < spans.len()).map(arg));
            return (args.len() > 1).then(|| encoded(&args));
        }
    };
    let count = number::parse(spans.get(NUMBER_OF_KEYS_AT)?.of(request))?;
    let behind = usize::try_from(count).ok()?.checked_add(FIRST_KEY_AT)?;
    if behind > spans.len() {
        return None;
    }
    let mut args: Vec<&[u8]> = (0..behind).map(arg).collect();
    if body.is_empty() {
        args.splice(..FIRST_KEY_AT, [&b"EXISTS"[..]]);
        return (args.len() > 1).then(|| encoded(&args));
    }
    *args.get_mut(1)? = body;
    Some(encoded(&args))
}

/// Places of the number of keys and of the first key in a request that runs a script.
const NUMBER_OF_KEYS_AT: usize = 2;
const FIRST_KEY_AT: usize = 3;

fn encoded(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, args);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSALS: [Refusal; 8] = [
        Refusal::Moved,
        Refusal::Ask,
        Refusal::TryAgain,
        Refusal::ClusterDown,
        Refusal::Loading,
        Refusal::MasterDown,
        Refusal::ReadOnly,
        Refusal::Unblocked,
    ];

    /// Every kind of request with every refusal.
    #[test]
    fn code_is_never_believed_without_a_proof() {
        use Belief::{Answer, AskRole, Believed, Confirm};
        for refusal in REFUSALS {
            assert_eq!(
                belief(RefusedRequest::Plain, refusal),
                Believed,
                "{refusal:?}"
            );
            assert_eq!(
                belief(RefusedRequest::Block, refusal),
                Believed,
                "{refusal:?}"
            );
        }
        let of_code = REFUSALS.map(|refusal| belief(RefusedRequest::Code, refusal));
        let waiting = [Confirm; 6];
        assert_eq!(of_code[..6], waiting);
        assert_eq!(of_code[6..], [AskRole, Answer]);
    }

    /// One refusal about slots may become another between the two questions. Any other refusal must
    /// be the same.
    #[test]
    fn a_twin_proves_a_refusal_of_its_own_kind() {
        for (at, twin) in REFUSALS.into_iter().enumerate() {
            for (other, refusal) in REFUSALS.into_iter().enumerate() {
                let of_slots = at < 4 && other < 4;
                assert_eq!(proves(twin, refusal), at == other || of_slots);
            }
        }
    }

    /// A twin has the keys of its request. It has nothing else that the client wrote, except the
    /// number of keys.
    #[test]
    fn a_twin_has_the_keys_and_does_nothing() {
        let of = |request: &str, keys: &[usize]| {
            let args: Vec<&str> = request.split(' ').collect();
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &args);
            twin(&bytes, keys.iter().copied())
        };
        let none = "0".repeat(40);
        for (request, expected) in [
            ("EVAL body 2 a b x", vec!["EVAL", "return 0", "2", "a", "b"]),
            ("eval_ro body 2 a b x", vec!["EXISTS", "a", "b"]),
            ("EVALSHA_RO digest 1 a", vec!["EXISTS", "a"]),
            ("EVALSHA digest 1 a x", vec!["EVALSHA", &none, "1", "a"]),
            ("FCALL f 1 a x", vec!["FCALL", "-", "1", "a"]),
            ("FCALL_RO f 1 a", vec!["EXISTS", "a"]),
            ("TOOL.ADD a x b", vec!["EXISTS", "a", "b"]),
        ] {
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &expected);
            assert_eq!(of(request, &[1, 3]), Some(bytes), "{request}");
        }
        for request in [
            "EVAL body 3 a b",
            "EVAL_RO body 0 x",
            "EVAL body -1",
            "EVAL body x",
            "EVAL body",
            "EVAL body 9223372036854775807",
            "DEBUG ERROR x",
            "GET k",
        ] {
            assert_eq!(of(request, &[1]), None, "{request}");
        }
        assert_eq!(of("TOOL.ADD a", &[]), None);
        assert_eq!(of("TOOL.ADD a", &[2]), None);
    }
}
