//! Requests that wait for a link which others hold: each has a deadline.
//!
//! Links that serve one session each have a bound, and so have streaming links. At it, a request
//! waits here, for the deadline of any request (`request-timeout-ms`) at the most. The time for
//! which a blocking command may wait runs all the same. At the deadline the client gets an error
//! that names the bound: the server was never asked, so nil would be untrue, and so would the 0 of
//! a WAIT. Most blocking commands do not come here: see [`crate::polling`].
//!
//! Rejected: to poll WAIT on a shared link. In a transaction a server counts the replicas that have
//! the last write of that link, so the writes of all sessions move the goal, and it does not ask
//! the replicas how far they are. They say so once a second. Most answers would be 0.

use std::collections::VecDeque;

use respool_protocol::commands::id;

use crate::bounds::Bound;
use crate::engine::Engine;
use crate::failure::{self, Cause, Fate};
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::session::{Flags, Session};
use crate::settings::WhenFull;
use crate::slots::Key;
use crate::time::Time;
use crate::wait::is_wait;

impl Engine {
    /// What may wait at the server, on a link of the session's own.
    pub(crate) fn place_waiting(
        &mut self,
        key: Key,
        request: &Request<'_>,
        place: impl FnOnce(&mut Engine) -> Placed,
    ) -> Placed {
        let gives_up_at = |engine: &Engine| engine.deadline_of(key);
        if !is_wait(request.id)
            && let Some(placed) = self.place_poll(key, request)
        {
            return placed;
        }
        let is_waiting = gives_up_at(self).is_some();
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
            (Placed::Wait, true) if !is_waiting => {
                let own = patience_ms(request).map(|ms| self.now.plus_ms(ms));
                let at = [own, gives_up_at(self)].into_iter().flatten().min();
                self.set_gives_up_at(key, at);
            }
            (Placed::Wait, _) => {}
        }
        placed
    }

    /// The next request of a session waits for links that other sessions hold. Its deadline is set,
    /// unless it waits already.
    pub(crate) fn begin_to_wait(&mut self, key: Key) {
        self.begin_to_wait_until(key, None);
    }

    /// The same, for so many milliseconds at the most.
    pub(crate) fn begin_to_wait_for(&mut self, key: Key, most_ms: u32) {
        self.begin_to_wait_until(key, Some(self.now.plus_ms(most_ms)));
    }

    fn begin_to_wait_until(&mut self, key: Key, own: Option<Time>) {
        let request_ms = self.settings.timeouts.request_ms;
        let deadline = (request_ms > 0).then(|| self.asked_at().plus_ms(request_ms));
        let at = [own, deadline].into_iter().flatten().min();
        if at.is_some() && self.deadline_of(key).is_none() {
            self.set_gives_up_at(key, at);
        }
    }

    /// Whether a session's next request has waited until its deadline.
    pub(crate) fn is_past_deadline(&self, key: Key) -> bool {
        self.deadline_of(key).is_some_and(|at| self.now >= at)
    }

    /// When a session's next request gives up, if it waits.
    pub(crate) fn deadline_of(&self, key: Key) -> Option<Time> {
        self.sessions.get(key)?.gives_up_at()
    }

    pub(crate) fn set_gives_up_at(&mut self, key: Key, at: Option<Time>) {
        if let Some(session) = self.sessions.get_mut(key)
            && (at.is_some() || session.rare.is_some())
        {
            let seq = session.next_seq;
            session.rare().gives_up_at = at.map(|at| (seq, at));
        }
    }

    /// A link owes as many replies as it may. A session waits until the link has room, at most
    /// until its deadline.
    pub(crate) fn wait_at_full(&mut self, key: Key, link: Key) -> Blocked {
        if self.is_past_deadline(key) {
            self.set_gives_up_at(key, None);
            let mut reply = Vec::new();
            let cause = Cause::Deadline {
                server: self.label(link),
                limit_ms: self.settings.timeouts.request_ms,
            };
            failure::append_reply(&mut reply, Fate::NotSent, cause);
            return Blocked::Refused(reply);
        }
        self.begin_to_wait(key);
        self.wait_at(key, link);
        Blocked::Wait
    }

    /// Lets sessions that wait at a link go on when their deadline has passed.
    pub(crate) fn tick_at_link(&mut self, link: Key) {
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        if state.waiters.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut state.waiters);
        let (late, rest) = waiters
            .into_iter()
            .partition::<Vec<Key>, _>(|key| self.is_past_deadline(*key));
        if let Some(state) = self.links.get_mut(link) {
            state.waiters = rest;
        }
        for key in late {
            self.release(key, Flags::HOLD_LINK);
        }
    }

    /// A command that has emergency links waits for one, or for room within the bound.
    pub(crate) fn wait_for_emergency(&mut self, key: Key, bound: Bound) -> Blocked {
        let is_refused =
            bound == Bound::PinnedLinks && self.settings.pinned_links_full == WhenFull::Refuse;
        if self.is_past_deadline(key) || is_refused {
            self.set_gives_up_at(key, None);
            return Blocked::Refused(bound_reply(bound.name()));
        }
        if self.deadline_of(key).is_none() {
            self.note_bound(bound);
        }
        self.begin_to_wait(key);
        self.urgent_waiters.push_back(key);
        self.hold(key, Flags::HOLD_ROOM);
        Blocked::Wait
    }

    /// An emergency link may be free: the first session that waits for one tries again.
    pub(crate) fn next_urgent(&mut self) {
        while let Some(key) = self.urgent_waiters.pop_front() {
            if self.sessions.get(key).is_some() {
                return self.release(key, Flags::HOLD_ROOM);
            }
        }
    }

    /// Lets requests go on whose deadline has passed: each is refused when it is looked at again.
    /// Sessions for which there is room go on, too.
    pub(crate) fn tick_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_over = |key| {
            // A session that has gone does nothing.
            let session: Option<&Session> = sessions.get(key);
            session.is_none_or(|session| session.gives_up_at().is_some_and(|at| now >= at))
        };
        let own = self.pinned_waiters.tick(is_over);
        let streaming = self.streaming_waiters.tick(is_over);
        let (urgent, rest) = std::mem::take(&mut self.urgent_waiters)
            .into_iter()
            .partition::<VecDeque<Key>, _>(|key| is_over(*key));
        self.urgent_waiters = rest;
        for key in own.into_iter().chain(urgent) {
            self.release(key, Flags::HOLD_ROOM);
        }
        for key in streaming {
            self.release(key, Flags::HOLD_LINK);
        }
        self.next_pinned();
        self.next_streaming();
        self.next_urgent();
        self.tick_link_waiters();
    }
}

/// How long a request may wait, milliseconds. `None`: for ever, or for longer than anybody looks;
/// or it is wrong, which the server says when there is a link for it. What would be wrong to which
/// server is not guessed: who guessed wrong would have everybody wait.
pub(crate) fn patience_ms(request: &Request<'_>) -> Option<u32> {
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
    use respool_protocol::encode;
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
