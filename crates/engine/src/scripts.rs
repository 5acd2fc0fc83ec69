//! Scripts that clients have shown. If a server has forgotten one, respool sends it along.

use std::collections::HashMap;

use respool_protocol::commands::{CommandId, Retry, id};
use respool_protocol::encode;
use respool_protocol::request::{Found, Scanner};
use sha1::{Digest, Sha1};

use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::fleet::Question;
use crate::limits::SCRIPT_BYTES_MAX;
use crate::requests::{Placed, Request};
use crate::session::Session;
use crate::slots::Key;

/// The bodies of scripts, by the pool of the client that showed them and by their SHA-1.
#[derive(Default)]
pub(crate) struct Scripts {
    bodies: HashMap<(u16, Name), Vec<u8>>,
    bytes: usize,
    /// Pools whose scripts were flushed in this turn.
    flushed: Vec<u16>,
}

/// The SHA-1 of a body, in lower-case hexadecimal.
type Name = [u8; 40];

impl Scripts {
    /// A client of this pool has shown a script.
    fn remember(&mut self, pool: u16, body: &[u8]) {
        let mut name = [0; 40];
        for (index, byte) in Sha1::digest(body).iter().enumerate() {
            name[2 * index] = HEX[usize::from(byte >> 4)];
            name[2 * index + 1] = HEX[usize::from(byte & 15)];
        }
        if body.len() + ENTRY_BYTES > SCRIPT_BYTES_MAX || self.bodies.contains_key(&(pool, name)) {
            return;
        }
        let len = body.len() + ENTRY_BYTES;
        if self.bytes + len > SCRIPT_BYTES_MAX {
            self.bodies = HashMap::new();
            self.bytes = 0;
        }
        self.bytes += len;
        self.bodies.insert((pool, name), body.to_vec());
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn body(&self, pool: u16, name: &[u8]) -> Option<&[u8]> {
        let name: Name = name.to_ascii_lowercase().try_into().ok()?;
        self.bodies.get(&(pool, name)).map(Vec::as_slice)
    }

    pub(crate) fn forget(&mut self, pool: u16) {
        self.bodies.retain(|(of, _), _| *of != pool);
        self.bytes = self
            .bodies
            .values()
            .map(|body| body.len() + ENTRY_BYTES)
            .sum();
    }
}

/// A script's place in the table, which may be half empty, and its own memory's bookkeeping.
const ENTRY_BYTES: usize = 2 * size_of::<((u16, Name), Vec<u8>)>() + 32;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// What a request that goes to several servers does to their scripts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Effect {
    None,
    /// SCRIPT LOAD.
    Load,
    /// SCRIPT FLUSH.
    Flush,
}

impl Effect {
    pub(crate) fn of(id: CommandId) -> Self {
        match id {
            id::SCRIPT_LOAD => Effect::Load,
            id::SCRIPT_FLUSH => Effect::Flush,
            _ => Effect::None,
        }
    }
}

impl Engine {
    /// EVAL, EVALSHA and their like.
    pub(crate) fn place_script(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let reads = request.command.retry == Retry::Read;
        let pool = self.pool_of_session(key);
        let duty = match request.id {
            id::EVAL | id::EVAL_RO => Some(Duty::Script { body_at: 1 }),
            id::SCRIPT_LOAD => Some(Duty::Script { body_at: 2 }),
            id::SCRIPT_FLUSH => Some(Duty::FlushScripts),
            _ => {
                let body = self.scripts.body(pool, request.arg(1));
                body.map(|_| Duty::Evalsha)
            }
        };
        self.place_on_link(key, request.bytes, reads, duty)
    }

    /// The reply to a SCRIPT FLUSH, or to a block with one. A client that flushes expects NOSCRIPT
    /// from then on, so all workers forget the bodies. The client may have left meanwhile.
    pub(crate) fn settle_flush(&mut self, link: Key, reply: &[u8]) {
        let server = self.links.get(link).map(|link| link.key.server);
        if let Some(server) = server.filter(|_| !reply.starts_with(b"-")) {
            let pool = self.pool_of(server).whole;
            self.scripts.forget(pool);
            if !self.scripts.flushed.contains(&pool) {
                self.scripts.flushed.push(pool);
            }
        }
    }

    /// Tells the other workers which scripts were flushed in this turn.
    pub(crate) fn tell_flushed(&mut self) {
        for pool in std::mem::take(&mut self.scripts.flushed) {
            self.tell_all(Question::ForgetScripts { pool });
        }
    }

    /// The reply to a request that showed a script. respool remembers the script, unless the reply
    /// is an error: then the server does not know it either.
    pub(crate) fn settle_script(&mut self, key: Key, request: &[u8], body_at: usize, reply: &[u8]) {
        let mut scanner = Scanner::default();
        if !reply.starts_with(b"-")
            && let Ok(Found::Request { .. }) = scanner.scan(request, true)
            && let Some(body) = scanner.spans().get(body_at)
            && let Some(session) = self.sessions.get(key)
        {
            self.scripts.remember(session.pool, body.of(request));
        }
    }

    /// The reply to an EVALSHA of a known script. If the server has forgotten the script, the
    /// request goes again behind its body. A script may also write NOSCRIPT itself, after it ran.
    /// So respool asks the server first whether it has the script. If the session has sent requests
    /// behind this one, these would be executed first. Then its client gets the reply.
    pub(crate) fn settle_evalsha(&mut self, link: Key, entry: Entry, request: &[u8], reply: &[u8]) {
        let is_last = |session: &Session| {
            session.link == link && session.next_seq == entry.seq.wrapping_add(1)
        };
        match reply.starts_with(b"-NOSCRIPT")
            && self.sessions.get(entry.session).is_some_and(is_last)
        {
            true => self.await_proof_of_noscript(link, entry, request, reply),
            false => self.pass_on(entry, reply),
        }
    }

    /// The server does not have the script of an EVALSHA. It gets the body, and the request again
    /// behind it. If respool has forgotten the body, the client gets the reply `noscript`. If the
    /// user may not load scripts, the server says NOSCRIPT once more, and the client gets that.
    pub(crate) fn send_script_along(
        &mut self,
        link: Key,
        entry: Entry,
        request: &[u8],
        noscript: &[u8],
    ) {
        let Some(mut bytes) = self.loading_of(entry.session, request) else {
            return self.pass_on(entry, noscript);
        };
        bytes.extend_from_slice(request);
        let Some(state) = self.links.get_mut(link) else {
            return self.pass_on(entry, noscript);
        };
        let entry = Entry {
            len: bytes.len() as u32,
            duty: true,
            ..entry
        };
        state.push_with(entry, &bytes, Duty::behind(1));
        self.counters.scripts_sent_along += 1;
        self.list_link(link);
        self.close_if_full(link);
    }

    /// SCRIPT LOAD of the body that an EVALSHA names.
    fn loading_of(&self, session: Key, evalsha: &[u8]) -> Option<Vec<u8>> {
        let session = self.sessions.get(session)?;
        let mut scanner = Scanner::default();
        let Ok(Found::Request { .. }) = scanner.scan(evalsha, true) else {
            return None;
        };
        let digest = scanner.spans().get(1)?.of(evalsha);
        let body = self.scripts.body(session.pool, digest)?;
        let mut loading = Vec::new();
        encode::request(&mut loading, &[&b"SCRIPT"[..], b"LOAD", body]);
        Some(loading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_found_by_the_name_that_redis_gives_it() {
        let mut scripts = Scripts::default();
        scripts.remember(0, b"return 1");
        // What SCRIPT LOAD "return 1" answers.
        let name = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(scripts.body(0, name), Some(&b"return 1"[..]));
        assert_eq!(
            scripts.body(0, &name.to_ascii_uppercase()),
            Some(&b"return 1"[..])
        );
        assert_eq!(scripts.body(0, &name[1..]), None);
        // Another pool has the script only after one of its own clients has shown it. A pool that
        // forgets it leaves it to the other.
        assert_eq!(scripts.body(1, name), None);
        scripts.remember(1, b"return 1");
        scripts.forget(0);
        assert_eq!(scripts.body(0, name), None);
        assert_eq!(scripts.body(1, name), Some(&b"return 1"[..]));
        assert_eq!(scripts.bytes, b"return 1".len() + ENTRY_BYTES);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut scripts = Scripts::default();
        for size in 0..40 {
            scripts.remember(size as u16 % 3, &vec![b'x'; 200_000 + size]);
            let held: usize = scripts
                .bodies
                .values()
                .map(|body| body.len() + ENTRY_BYTES)
                .sum();
            assert_eq!(held, scripts.bytes);
            assert!(held <= SCRIPT_BYTES_MAX);
        }
        scripts.remember(0, &vec![b'x'; SCRIPT_BYTES_MAX + 1]);
        assert!(!scripts.bodies.is_empty());
    }
}
