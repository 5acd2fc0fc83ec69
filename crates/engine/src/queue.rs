//! Who waits for a link to wait on: no longer than for what it asked.
//!
//! Links that serve one session each have a bound. At it, BLPOP and its like wait here, and the time for which
//! they may wait runs all the same: who asked for a second gets nothing after a second, as from the server.

use respool_protocol::commands::id;
use respool_protocol::encode;

use crate::engine::Engine;
use crate::requests::{Placed, Request};
use crate::session::Flags;
use crate::slots::Key;
use crate::time::Time;

impl Engine {
    /// What may wait at the server, on a link of the session's own.
    pub(crate) fn place_waiting(
        &mut self,
        key: Key,
        request: &Request<'_>,
        place: impl FnOnce(&mut Engine) -> Placed,
    ) -> Placed {
        let gives_up_at = |engine: &Engine| {
            let session = engine.sessions.get(key)?;
            let (seq, at) = session.rare.as_ref()?.gives_up_at?;
            // Not that of a request before this one.
            (seq == session.next_seq).then_some(at)
        };
        if gives_up_at(self).is_some_and(|at| self.now >= at) {
            self.set_gives_up_at(key, None);
            return self.answer_with(key, |out, session| match request.id {
                // So many servers are known to have it.
                id::WAIT => encode::integer(out, 0),
                id::WAITAOF => {
                    encode::array(out, 2);
                    encode::integer(out, 0);
                    encode::integer(out, 0);
                }
                _ => encode::null_array(out, session.version),
            });
        }
        let placed = place(self);
        let Some(session) = self.sessions.get(key) else {
            return placed;
        };
        let waits = session.flags.any(Flags::HOLD_ROOM);
        if waits && session.flags.any(Flags::ENDED) {
            // Nobody should get any more what comes there.
            self.close_when_answered(key);
            return placed;
        }
        match (placed, waits) {
            (Placed::Done, _) => self.set_gives_up_at(key, None),
            (Placed::Wait, true) if gives_up_at(self).is_none() => {
                let at = patience_ms(request).map(|ms| self.now.plus_ms(ms));
                self.set_gives_up_at(key, at);
            }
            (Placed::Wait, _) => {}
        }
        placed
    }

    fn set_gives_up_at(&mut self, key: Key, at: Option<Time>) {
        if let Some(session) = self.sessions.get_mut(key)
            && (at.is_some() || session.rare.is_some())
        {
            let seq = session.next_seq;
            session.rare().gives_up_at = at.map(|at| (seq, at));
        }
    }

    /// Lets those go on whose time is over.
    pub(crate) fn tick_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_late = |key: &Key| {
            let rare = sessions.get(*key).and_then(|session| session.rare.as_ref());
            rare.and_then(|rare| rare.gives_up_at)
                .is_some_and(|(_, at)| now >= at)
        };
        let late: Vec<Key> = self
            .pinned_waiters
            .iter()
            .copied()
            .filter(is_late)
            .collect();
        // Those that left are found here, too.
        self.pinned_waiters
            .retain(|key| sessions.get(*key).is_some() && !is_late(key));
        self.streaming_waiters
            .retain(|key| sessions.get(*key).is_some());
        for key in late {
            self.release(key, Flags::HOLD_ROOM);
        }
    }
}

/// How long a request may wait, milliseconds. `None`: for ever, or for longer than anybody looks; or it is wrong, which the
/// server says when there is a link for it. What would be wrong to which server is not guessed: who guessed wrong would
/// have everybody wait.
fn patience_ms(request: &Request<'_>) -> Option<u32> {
    let argc = request.spans.len();
    let text = |at: usize| std::str::from_utf8(request.args().nth(at)?).ok();
    let of_seconds = |at| text(at)?.parse().ok().map(|seconds: f64| seconds * 1_000.0);
    let of_ms = |at| text(at)?.parse().ok().map(|ms: i64| ms as f64);
    let ms = match request.id {
        id::BLMPOP | id::BZMPOP => of_seconds(1),
        id::WAIT | id::WAITAOF => of_ms(argc - 1),
        id::XREAD | id::XREADGROUP => of_ms(block_at(request)?),
        _ => of_seconds(argc - 1),
    };
    let ms = ms.filter(|ms| *ms > 0.0 && *ms <= f64::from(u32::MAX));
    ms.map(|ms| ms.ceil() as u32)
}

/// Where an XREAD or XREADGROUP says how long it blocks.
fn block_at(request: &Request<'_>) -> Option<usize> {
    let mut at = 1;
    loop {
        let word = request.args().nth(at)?;
        if word.eq_ignore_ascii_case(b"BLOCK") {
            return Some(at + 1);
        } else if word.eq_ignore_ascii_case(b"GROUP") {
            at += 3;
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            at += 2;
        } else if word.eq_ignore_ascii_case(b"NOACK") {
            at += 1;
        } else {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_protocol::commands;
    use respool_protocol::request::{Found, Scanner};

    fn patience(words: &str) -> Option<u32> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let mut scanner = Scanner::default();
        assert!(matches!(
            scanner.scan(&bytes, true),
            Ok(Found::Request { .. })
        ));
        let id = commands::lookup(words[0].as_bytes()).expect("a command");
        patience_ms(&Request {
            bytes: &bytes,
            spans: scanner.spans(),
            id,
            command: id.get(),
        })
    }

    #[test]
    fn a_time_is_read_where_each_command_has_it() {
        for (request, ms) in [
            ("BLPOP a b 1.5", 1_500),
            ("BLMOVE a b LEFT RIGHT 0.01", 10),
            ("BLMPOP 2 1 l LEFT", 2_000),
            ("BZMPOP 0.5 1 z MIN COUNT 3", 500),
            ("XREAD COUNT 1 BLOCK 70 STREAMS s 0", 70),
            ("XREADGROUP GROUP block c BLOCK 500 STREAMS s 0", 500),
            ("XREADGROUP BLOCK 6 GROUP BLOCK x STREAMS s >", 6),
            ("XREADGROUP GROUP g c NOACK COUNT 2 BLOCK 5 STREAMS s 0", 5),
            ("WAIT 1 500", 500),
            ("WAITAOF 1 0 20", 20),
        ] {
            assert_eq!(patience(request), Some(ms), "{request}");
        }
        for forever_or_wrong in [
            "BLPOP",
            "BLMPOP",
            "BLPOP a 0",
            "BLPOP a -0.0001",
            "BLPOP a -1",
            "BLPOP a x",
            "BLPOP a inf",
            "BLPOP a nan",
            "BLPOP a 1e30",
            "XREAD BLOCK",
            "XREAD BLOCK 0 STREAMS s 0",
            "XREAD BLOCK -1 STREAMS s 0",
            "XREAD BLOCK 1.5 STREAMS s 0",
            "XREAD STREAMS BLOCK 5",
            "WAIT",
            "WAIT 1 0",
        ] {
            assert_eq!(patience(forever_or_wrong), None, "{forever_or_wrong}");
        }
    }
}
