//! Who waits for a link to wait on: no longer than for what it asked.
//!
//! Links that serve one session each have a bound. At it, BLPOP and its like wait here, and the time for which
//! they may wait runs all the same: who asked for a second gets nothing after a second, as from the server.

use respool_protocol::commands::id;
use respool_protocol::encode;
use respool_protocol::number;

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
        let patience = Patience::of(request);
        if patience == Patience::Wrong && !self.has_room_for_own_link() {
            // The server says what is wrong, and nothing waits for that.
            return self.place_on_link(key, request.bytes, false, None);
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
                if let Patience::Ms(ms) = patience {
                    self.set_gives_up_at(key, Some(self.now.plus_ms(ms)));
                }
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

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Patience {
    /// Milliseconds.
    Ms(u32),
    /// For ever, or longer than anybody looks.
    Endless,
    /// It is no time to any server.
    Wrong,
}

impl Patience {
    fn of(request: &Request<'_>) -> Patience {
        let argc = request.spans.len();
        match request.id {
            id::BLMPOP | id::BZMPOP => Patience::of_seconds(request, 1),
            id::WAIT | id::WAITAOF => Patience::of_ms(request, argc - 1),
            id::XREAD | id::XREADGROUP => match block_at(request) {
                Some(at) => Patience::of_ms(request, at),
                None => Patience::Endless,
            },
            _ => Patience::of_seconds(request, argc - 1),
        }
    }

    fn of_ms(request: &Request<'_>, at: usize) -> Patience {
        let text = request.args().nth(at).unwrap_or_default();
        match number::parse(text) {
            Some(0) => Patience::Endless,
            Some(ms) if ms > 0 => u32::try_from(ms).map_or(Patience::Endless, Patience::Ms),
            _ => Patience::Wrong,
        }
    }

    fn of_seconds(request: &Request<'_>, at: usize) -> Patience {
        let text = request.args().nth(at).unwrap_or_default();
        let text = std::str::from_utf8(text).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(0.0) => Patience::Endless,
            Ok(seconds) if seconds > 0.0 && seconds * 1_000.0 < i64::MAX as f64 => {
                let ms = (seconds * 1_000.0).ceil();
                match ms <= f64::from(u32::MAX) {
                    true => Patience::Ms(ms as u32),
                    false => Patience::Endless,
                }
            }
            Ok(_) => Patience::Wrong,
            // C reads hexadecimal numbers, too.
            Err(_) if text.contains(['x', 'X']) => Patience::Endless,
            Err(_) => Patience::Wrong,
        }
    }
}

/// Where an XREAD or XREADGROUP says how long it blocks.
fn block_at(request: &Request<'_>) -> Option<usize> {
    let mut at = if request.id == id::XREADGROUP { 4 } else { 1 };
    loop {
        let word = request.args().nth(at)?;
        if word.eq_ignore_ascii_case(b"BLOCK") {
            return Some(at + 1);
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

    fn patience(words: &str) -> Patience {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let mut scanner = Scanner::default();
        assert!(matches!(
            scanner.scan(&bytes, true),
            Ok(Found::Request { .. })
        ));
        let id = commands::lookup(words[0].as_bytes()).expect("a command");
        Patience::of(&Request {
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
            ("XREADGROUP GROUP g c NOACK COUNT 2 BLOCK 5 STREAMS s 0", 5),
            ("WAIT 1 500", 500),
            ("WAITAOF 1 0 20", 20),
        ] {
            assert_eq!(patience(request), Patience::Ms(ms), "{request}");
        }
        for endless in [
            "BLPOP a 0",
            "BLPOP a -0",
            "BLPOP a 0x1",
            "BLPOP a 1e15",
            "XREAD BLOCK 0 STREAMS s 0",
            "XREAD STREAMS BLOCK 5",
            "WAIT 1 0",
        ] {
            assert_eq!(patience(endless), Patience::Endless, "{endless}");
        }
        for wrong in [
            "BLPOP",
            "BLMPOP",
            "BLPOP a -1",
            "BLPOP a y",
            "BLPOP a inf",
            "BLPOP a nan",
            "BLPOP a 1e30",
            "XREAD BLOCK",
            "XREAD BLOCK -1 STREAMS s 0",
            "XREAD BLOCK 1.5 STREAMS s 0",
            "WAIT",
        ] {
            assert_eq!(patience(wrong), Patience::Wrong, "{wrong}");
        }
    }
}
