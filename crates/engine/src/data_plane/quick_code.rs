//! Code that may hold up its connection travels on a link apart.
//!
//! ```text
//!   EVAL, EVALSHA, FCALL, a command of a module, EXEC with one of these:
//!     came back, and was not slow of late ──► the link that all sessions share
//!     new, or slow of late ──► the link apart; the session's next request waits for the reply
//!   FLUSHALL, FLUSHDB           ──► always the link apart
//! ```
//!
//! A script that loops past `busy-reply-threshold` stops its own connection, and so do a module's
//! command that blocks its client and FLUSHALL of a server that frees memory in the background. All
//! other connections are answered. [`crate::takeover`] leads later requests, and reads, around such
//! a link. A write that was sent behind the script stays there, because it must not be executed
//! twice. So no session's write is put behind code that has not yet come back quickly.
//!
//! Rejected: no request behind new code on the shared link. A client that writes its arguments into
//! the bodies of its scripts would cost all sessions a round trip for each of them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use respool_protocol::commands::{CommandId, id};

use crate::elsewhere::as_asked;
use crate::engine::Engine;
use crate::limits::{CODE_SLOW_MS, QUICK_CODE_MAX};
use crate::link::LinkKey;
use crate::requests::{Placed, Request};
use crate::scripts::{each_request, is_refusal};
use crate::session::Session;
use crate::slots::Key;
use crate::slow_readers::{CODE_LANE, EVERYBODYS};
use crate::time::Time;

/// The code that a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code<'a> {
    Body(&'a [u8]),
    Digest(&'a [u8]),
    Function(&'a [u8]),
    /// A command that the table does not have.
    Command(&'a [u8]),
}

/// Code as [`QuickCode`] knows it: a hash of its pool and of the code.
type Name = u64;

/// How code came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Quick,
    /// A link was stuck behind it.
    Slow {
        until: Time,
    },
}

/// Which code is quick: no link was stuck behind it of late (see [`crate::takeover`]). Two generations: what was used since the last change of generations is
/// young. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct QuickCode {
    hasher: RandomState,
    young: HashMap<Name, Seen>,
    old: HashMap<Name, Seen>,
}

impl QuickCode {
    fn name(&self, pool: u16, code: Code<'_>) -> Name {
        self.hasher.hash_one((pool, code))
    }

    fn seen(&mut self, name: Name) -> Option<Seen> {
        if let Some(seen) = self.young.get(&name) {
            return Some(*seen);
        }
        let seen = self.old.remove(&name)?;
        self.note(name, seen);
        Some(seen)
    }

    fn note(&mut self, name: Name, seen: Seen) {
        if self.young.len() >= QUICK_CODE_MAX / 2 && !self.young.contains_key(&name) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, seen);
    }

    /// Whether the code came back quickly of late.
    fn is_quick(&mut self, name: Name) -> bool {
        self.seen(name) == Some(Seen::Quick)
    }

    /// The code came back.
    fn came_back(&mut self, name: Name, now: Time) {
        let is_slow = match self.seen(name) {
            Some(Seen::Slow { until }) => now < until,
            Some(Seen::Quick) | None => false,
        };
        if !is_slow {
            self.note(name, Seen::Quick);
        }
    }

    /// A link is stuck behind the code.
    fn is_stuck(&mut self, name: Name, now: Time) {
        let until = now.plus_ms(CODE_SLOW_MS);
        self.note(name, Seen::Slow { until });
    }
}

/// Whether a request may hold up its connection alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds<'a> {
    Never,
    /// If this code is slow.
    Code(Code<'a>),
    /// If the server has much to free.
    Flush,
}

/// `id` is `None` if the table does not have the command.
fn holds<'a>(id: Option<CommandId>, arg: impl Fn(usize) -> Option<&'a [u8]>) -> Holds<'a> {
    let (at, of): (usize, fn(&'a [u8]) -> Code<'a>) = match id {
        Some(id::FLUSHALL | id::FLUSHDB) => return Holds::Flush,
        Some(id::EVAL | id::EVAL_RO) => (1, Code::Body),
        Some(id::EVALSHA | id::EVALSHA_RO) => (1, Code::Digest),
        Some(id::FCALL | id::FCALL_RO) => (1, Code::Function),
        Some(_) => return Holds::Never,
        None => (0, Code::Command),
    };
    arg(at).map_or(Holds::Never, |text| Holds::Code(of(text)))
}

/// The kind of link for code of sessions that ride on links of this kind.
fn of_code(kind: LinkKey) -> LinkKey {
    LinkKey {
        lane: CODE_LANE,
        ..kind
    }
}

/// Whether a request that the table knows may hold up its connection alone: it does not take the
/// short way.
pub(crate) fn may_hold_up(id: CommandId) -> bool {
    holds(Some(id), |_| Some(&[])) != Holds::Never
}

impl Engine {
    /// Places a request of a session. If it may hold up its connection, it goes on a link apart.
    pub(crate) fn place_code(
        &mut self,
        key: Key,
        request: &Request<'_>,
        place: impl FnOnce(&mut Engine) -> Placed,
    ) -> Placed {
        let arg = |at: usize| request.spans.get(at).map(|span| span.of(request.bytes));
        let holds = holds(Some(request.id), arg);
        self.place_apart(key, |engine, pool| engine.may_hold(pool, holds), place)
    }

    /// The same for a request, or several, with any command.
    pub(crate) fn place_any_code(
        &mut self,
        key: Key,
        requests: &[u8],
        place: impl FnOnce(&mut Engine) -> Placed,
    ) -> Placed {
        let may_hold = |engine: &mut Engine, pool| {
            let mut may = false;
            each_request(requests, |id, args| {
                let holds = holds(id, |at| args.get(at).copied());
                may |= engine.may_hold(pool, holds);
            });
            may
        };
        self.place_apart(key, may_hold, place)
    }

    fn place_apart(
        &mut self,
        key: Key,
        may_hold: impl FnOnce(&mut Engine, u16) -> bool,
        place: impl FnOnce(&mut Engine) -> Placed,
    ) -> Placed {
        let Some(pool) = self.sessions.get(key).map(|session| session.pool) else {
            return Placed::Done;
        };
        if !may_hold(self, pool) {
            return place(self);
        }
        if self.waits_to_ride_apart(key) {
            return Placed::Wait;
        }
        let placed = place(self);
        // The session's next request waits for the reply, and goes with those of all others.
        self.change_lane(key);
        placed
    }

    fn may_hold(&mut self, pool: u16, holds: Holds<'_>) -> bool {
        match holds {
            Holds::Never => false,
            Holds::Flush => true,
            Holds::Code(code) => {
                let name = self.quick_code.name(pool, code);
                !self.quick_code.is_quick(name)
            }
        }
    }

    /// A session's next request goes on the link apart. Returns whether the session must wait until
    /// its earlier requests are answered. A session with a link of its own, or in a lane of slow or
    /// large readers, stays there.
    fn waits_to_ride_apart(&mut self, key: Key) -> bool {
        let rides_with_all =
            |session: &Session| session.pins.is_empty() && session.lane == EVERYBODYS;
        if !self.sessions.get(key).is_some_and(rides_with_all) || self.tracks_several(key) {
            return false;
        }
        let kind = self.sessions.get(key).map(|session| self.kind_of(session));
        if !kind.is_some_and(|kind| self.has_lane_link(of_code(kind))) {
            return false;
        }
        if self.hold_until_caught_up(key) {
            return true;
        }
        if !self.would_overtake(key) {
            self.visit_code_lane(key);
        }
        false
    }

    /// The kind of link for one part of a FLUSHALL to several servers, whose session rides on links
    /// of this kind. Nothing of the session is in flight.
    pub(crate) fn kind_for_flush(&mut self, key: Key, kind: LinkKey) -> LinkKey {
        let apart = of_code(kind);
        let may = kind.lane == EVERYBODYS && self.has_lane_link(apart) && !self.would_overtake(key);
        if may { apart } else { kind }
    }

    /// The server has answered the request in front of a link for code. Its code counts as quick,
    /// unless the server may not have run it.
    pub(crate) fn note_code_answered(&mut self, link: Key, reply: &[u8]) {
        let noscript = b"-NOSCRIPT";
        let finds = || {
            reply
                .windows(noscript.len())
                .any(|window| window == noscript)
        };
        if is_refusal(reply) || reply.starts_with(b"-ERR") || finds() {
            return;
        }
        let now = self.now;
        for name in self.code_in_front(link) {
            self.quick_code.came_back(name, now);
        }
    }

    /// A link is stuck behind the request in front.
    pub(crate) fn note_slow_code(&mut self, link: Key) {
        let now = self.now;
        for name in self.code_in_front(link) {
            self.quick_code.is_stuck(name, now);
        }
    }

    fn code_in_front(&self, link: Key) -> Vec<Name> {
        let mut names = Vec::new();
        if let Some(state) = self.links.get(link) {
            let pool = self.pool_of(state.key.server).whole;
            each_request(as_asked(state.first_bytes()), |id, args| {
                if let Holds::Code(code) = holds(id, |at| args.get(at).copied()) {
                    names.push(self.quick_code.name(pool, code));
                }
            });
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: Code<'static> = Code::Body(b"return 1");

    fn at_ms(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    #[test]
    fn code_is_quick_once_it_came_back() {
        let mut code = QuickCode::default();
        let name = code.name(0, BODY);
        assert!(!code.is_quick(name));
        code.came_back(name, at_ms(0));
        assert!(code.is_quick(name));
        let elsewhere = code.name(1, BODY);
        let function = code.name(0, Code::Function(b"return 1"));
        assert!(!code.is_quick(elsewhere) && !code.is_quick(function));
    }

    #[test]
    fn slow_code_is_not_quick_for_a_while() {
        let mut code = QuickCode::default();
        let name = code.name(0, BODY);
        code.came_back(name, at_ms(0));
        code.is_stuck(name, at_ms(100));
        assert!(!code.is_quick(name));
        code.came_back(name, at_ms(100 + CODE_SLOW_MS - 1));
        assert!(!code.is_quick(name));
        code.came_back(name, at_ms(100 + CODE_SLOW_MS));
        assert!(code.is_quick(name));
    }

    #[test]
    fn code_in_use_stays_known_and_the_rest_is_forgotten() {
        let mut code = QuickCode::default();
        let (used, unused) = (
            code.name(0, Code::Body(b"used")),
            code.name(0, Code::Body(b"unused")),
        );
        code.came_back(used, at_ms(0));
        code.came_back(unused, at_ms(0));
        for number in 0..2 * QUICK_CODE_MAX as u64 {
            code.came_back(number, at_ms(0));
            assert!(code.is_quick(used));
            assert!(code.young.len() + code.old.len() <= QUICK_CODE_MAX);
        }
        assert!(!code.is_quick(unused));
    }
}
