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
        let gives_up_at = |engine: &Engine| engine.sessions.get(key)?.rare.as_ref()?.gives_up_at;
        if gives_up_at(self).is_some_and(|at| self.now >= at) {
            self.set_gives_up_at(key, None);
            return self.answer_with(key, |out, session| match request.id {
                id::BLMOVE | id::BRPOPLPUSH => encode::null(out, session.version),
                _ => encode::null_array(out, session.version),
            });
        }
        let placed = place(self);
        let waits = self
            .sessions
            .get(key)
            .is_some_and(|session| session.flags.any(Flags::HOLD_ROOM));
        match (placed, waits) {
            (Placed::Done, _) => self.set_gives_up_at(key, None),
            (Placed::Wait, true) if gives_up_at(self).is_none() => {
                let at = timeout_ms(request).map(|ms| self.now.plus_ms(ms));
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
            session.rare().gives_up_at = at;
        }
    }

    /// Lets those go on whose time is over.
    pub(crate) fn tick_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_late = |key: &Key| {
            let rare = sessions.get(*key).and_then(|session| session.rare.as_ref());
            rare.and_then(|rare| rare.gives_up_at)
                .is_some_and(|at| now >= at)
        };
        let late: Vec<Key> = self
            .pinned_waiters
            .iter()
            .copied()
            .filter(is_late)
            .collect();
        self.pinned_waiters.retain(|key| !is_late(key));
        for key in late {
            self.release(key, Flags::HOLD_ROOM);
        }
    }
}

/// How long a request may wait, milliseconds. `None`: for ever, or it is wrong, which the server says best.
fn timeout_ms(request: &Request<'_>) -> Option<u32> {
    let argc = request.spans.len();
    let number = |at: usize| -> Option<f64> {
        let text = std::str::from_utf8(request.args().nth(at)?).ok()?;
        text.parse().ok()
    };
    let ms = match request.id {
        id::BLMPOP | id::BZMPOP => number(1)? * 1_000.0,
        id::XREAD | id::XREADGROUP => {
            let is_block = |at: &usize| request.arg(*at).eq_ignore_ascii_case(b"BLOCK");
            number((1..argc - 1).find(is_block)? + 1)?
        }
        _ => number(argc - 1)? * 1_000.0,
    };
    (ms > 0.0 && ms <= f64::from(u32::MAX)).then_some(ms.ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_protocol::commands;
    use respool_protocol::request::{Found, Scanner};

    fn timeout(words: &str) -> Option<u32> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let mut scanner = Scanner::default();
        assert!(matches!(
            scanner.scan(&bytes, true),
            Ok(Found::Request { .. })
        ));
        let id = commands::lookup(words[0].as_bytes()).expect("a command");
        timeout_ms(&Request {
            bytes: &bytes,
            spans: scanner.spans(),
            id,
            command: id.get(),
        })
    }

    #[test]
    fn a_time_is_read_where_each_command_has_it() {
        assert_eq!(timeout("BLPOP a b 1.5"), Some(1_500));
        assert_eq!(timeout("BLMOVE a b LEFT RIGHT 0.01"), Some(10));
        assert_eq!(timeout("BLMPOP 2 1 l LEFT"), Some(2_000));
        assert_eq!(timeout("BZMPOP 0.5 1 z MIN COUNT 3"), Some(500));
        assert_eq!(timeout("XREAD COUNT 1 BLOCK 70 STREAMS s 0"), Some(70));
        for forever_or_wrong in [
            "BLPOP",
            "BLMPOP",
            "BZMPOP",
            "XREAD",
            "XREAD BLOCK",
            "BLPOP a 0",
            "BLPOP a -1",
            "BLPOP a x",
            "BLPOP a inf",
            "BLPOP a nan",
        ] {
            assert_eq!(timeout(forever_or_wrong), None, "{forever_or_wrong}");
        }
    }
}
