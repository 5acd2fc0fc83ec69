//! Code that may block its connection goes on a link of its own lane.
//!
//! ```text
//!   EVAL, EVALSHA, FCALL, a command of a module, EXEC with one of these:
//!     came back, and was not slow of late ──► the link that all sessions share
//!     new, or slow of late ──► a link of the code lane; the session waits for the reply
//!   FLUSHALL, FLUSHDB           ──► always a link of the code lane
//! ```
//!
//! A script that loops past `busy-reply-threshold` stops its own connection. So do a module's
//! command that blocks its client, and FLUSHALL of a server that frees memory in the background.
//! The server answers all other connections. [`crate::data_plane::takeover`] leads later requests,
//! and reads, around such a link. A write that was sent behind the script stays there, because it
//! must not be executed twice. So no session's write is put behind code that has not yet come back
//! quickly.
//!
//! Rejected: to put no request behind new code on the shared link. A client that writes its
//! arguments into the bodies of its scripts would cost all sessions a round trip for each script.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use respool_protocol::commands::{CommandId, id};

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{CODE_SLOW_MS, QUICK_CODE_MAX};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::link::LinkKind;
use crate::data_plane::scripts::{each_request, is_refusal};
use crate::data_plane::sent_request::without_asking;
use crate::data_plane::session::Session;
use crate::data_plane::slow_readers::{CODE_LANE, DEFAULT_LANE};

/// The code that a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ScriptCode<'a> {
    Body(&'a [u8]),
    Digest(&'a [u8]),
    Function(&'a [u8]),
    /// A command that the table does not have.
    Command(&'a [u8]),
}

/// A hash of a pool and of code, by which [`QuickCode`] knows the code.
type CodeHash = u64;

/// How long code took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeRecord {
    Quick,
    /// A link was stuck behind it.
    Slow {
        until: Time,
    },
}

/// Which code is quick: no link was stuck behind it of late (see [`crate::data_plane::takeover`]).
/// It keeps two generations: entries used since the last change of generations are young. Time
/// never runs back.
#[derive(Debug, Default)]
pub(crate) struct QuickCode {
    hasher: RandomState,
    young: HashMap<CodeHash, CodeRecord>,
    old: HashMap<CodeHash, CodeRecord>,
}

impl QuickCode {
    fn name(&self, pool: u16, code: ScriptCode<'_>) -> CodeHash {
        self.hasher.hash_one((pool, code))
    }

    fn seen(&mut self, name: CodeHash) -> Option<CodeRecord> {
        if let Some(seen) = self.young.get(&name) {
            return Some(*seen);
        }
        let seen = self.old.remove(&name)?;
        self.note(name, seen);
        Some(seen)
    }

    fn note(&mut self, name: CodeHash, seen: CodeRecord) {
        if self.young.len() >= QUICK_CODE_MAX / 2 && !self.young.contains_key(&name) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, seen);
    }

    /// Whether the code came back quickly of late.
    fn look_up_quick(&mut self, name: CodeHash) -> bool {
        self.seen(name) == Some(CodeRecord::Quick)
    }

    /// The server has answered the code.
    fn note_answered(&mut self, name: CodeHash, now: Time) {
        let is_slow = match self.seen(name) {
            Some(CodeRecord::Slow { until }) => now < until,
            Some(CodeRecord::Quick) | None => false,
        };
        if !is_slow {
            self.note(name, CodeRecord::Quick);
        }
    }

    /// A link is stuck behind the code.
    fn note_stuck(&mut self, name: CodeHash, now: Time) {
        let until = now.plus_ms(CODE_SLOW_MS);
        self.note(name, CodeRecord::Slow { until });
    }
}

/// Whether a request may hold up its connection alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldUp<'a> {
    Never,
    /// It may, if this code is slow.
    Code(ScriptCode<'a>),
    /// It may, if the server has much to free.
    Flush,
}

/// Whether a request with these arguments may hold up its connection. `id`: `None` if the table
/// does not have the command.
fn holds<'a>(id: Option<CommandId>, arg: impl Fn(usize) -> Option<&'a [u8]>) -> HoldUp<'a> {
    let (at, of): (usize, fn(&'a [u8]) -> ScriptCode<'a>) = match id {
        Some(id::FLUSHALL | id::FLUSHDB) => return HoldUp::Flush,
        Some(id::EVAL | id::EVAL_RO) => (1, ScriptCode::Body),
        Some(id::EVALSHA | id::EVALSHA_RO) => (1, ScriptCode::Digest),
        Some(id::FCALL | id::FCALL_RO) => (1, ScriptCode::Function),
        Some(_) => return HoldUp::Never,
        None => (0, ScriptCode::Command),
    };
    arg(at).map_or(HoldUp::Never, |text| HoldUp::Code(of(text)))
}

/// The kind of link for code of sessions that are attached to links of this kind.
fn of_code(kind: LinkKind) -> LinkKind {
    LinkKind {
        lane: CODE_LANE,
        ..kind
    }
}

/// Whether a command of the table may hold up its connection alone. Then it leaves the hot path.
pub(crate) fn may_hold_up(id: CommandId) -> bool {
    holds(Some(id), |_| Some(&[])) != HoldUp::Never
}

/// The way of a request that may hold up its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum CodeLane {
    /// It goes on the link of its session: its code is quick, or its session has no choice.
    Common,
    /// It goes on a link of the code lane, to which its session is attached until
    /// [`DataPlane::leave_code_lane`] is called.
    Visited,
    /// Its session waits for the replies to earlier requests.
    Waits,
}

impl DataPlane {
    /// Sends a request that may hold up the requests behind it.
    pub(crate) fn dispatch_code(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let lane = self.enter_code_lane(id, request);
        self.on_code_lane(id, lane, |plane| plane.dispatch_to_link(id, request))
    }

    /// Chooses the way of a session's next request. Call [`DataPlane::leave_code_lane`] when the
    /// request has its place, unless the session waits.
    pub(crate) fn enter_code_lane(&mut self, id: SessionId, request: &Request<'_>) -> CodeLane {
        let arg = |at: usize| request.spans.get(at).map(|span| span.of(request.bytes));
        self.enter_lane_if(id, |plane, pool| {
            plane.may_hold(pool, holds(Some(request.id), arg))
        })
    }

    /// Chooses the way of one or more requests with any commands, which go together.
    pub(crate) fn enter_code_lane_with(&mut self, id: SessionId, requests: &[u8]) -> CodeLane {
        self.enter_lane_if(id, |plane, pool| {
            let mut may = false;
            each_request(requests, |id, args| {
                let holds = holds(id, |at| args.get(at).copied());
                may |= plane.may_hold(pool, holds);
            });
            may
        })
    }

    fn enter_lane_if(
        &mut self,
        id: SessionId,
        may_hold: impl FnOnce(&mut DataPlane, u16) -> bool,
    ) -> CodeLane {
        let Some(pool) = self.sessions.get(id).map(|session| session.pool) else {
            return CodeLane::Common;
        };
        if !may_hold(self, pool) {
            return CodeLane::Common;
        }
        match self.wait_for_code_lane(id) {
            true => CodeLane::Waits,
            false => CodeLane::Visited,
        }
    }

    /// Places a request on the way that was chosen for it, unless the session waits.
    pub(crate) fn on_code_lane(
        &mut self,
        id: SessionId,
        lane: CodeLane,
        place: impl FnOnce(&mut DataPlane) -> Dispatched,
    ) -> Dispatched {
        if lane == CodeLane::Waits {
            return Dispatched::Wait;
        }
        let dispatched = place(self);
        self.leave_code_lane(id, lane);
        dispatched
    }

    /// The request has its place: the session's next request waits for the reply, and goes on the
    /// shared link again.
    pub(crate) fn leave_code_lane(&mut self, id: SessionId, lane: CodeLane) {
        if lane == CodeLane::Visited {
            self.change_lane(id);
        }
    }
}

impl DataPlane {
    fn may_hold(&mut self, pool: u16, holds: HoldUp<'_>) -> bool {
        match holds {
            HoldUp::Never => false,
            HoldUp::Flush => true,
            HoldUp::Code(code) => {
                let name = self.quick_code.name(pool, code);
                !self.quick_code.look_up_quick(name)
            }
        }
    }

    /// The kind of link for one share of a FLUSHALL to several servers. `kind`: the kind of the
    /// session's links. Nothing of the session is in flight.
    pub(crate) fn kind_for_flush(&mut self, id: SessionId, kind: LinkKind) -> LinkKind {
        let apart = of_code(kind);
        let may =
            kind.lane == DEFAULT_LANE && self.has_lane_link(apart) && !self.would_overtake(id);
        if may { apart } else { kind }
    }

    /// The server has answered the request in front of a link for code. The code counts as quick,
    /// unless the server may not have run it.
    pub(crate) fn note_code_answered(&mut self, link: LinkId, reply: &[u8]) {
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
            self.quick_code.note_answered(name, now);
        }
    }

    /// A link is stuck behind the request in front: its code counts as slow.
    pub(crate) fn note_slow_code(&mut self, link: LinkId) {
        let now = self.now;
        for name in self.code_in_front(link) {
            self.quick_code.note_stuck(name, now);
        }
    }

    fn code_in_front(&self, link_id: LinkId) -> Vec<CodeHash> {
        let mut names = Vec::new();
        if let Some(link) = self.links.get(link_id) {
            let pool = self.pool_of(link.kind.server).parent;
            each_request(without_asking(link.ledger.first_bytes()), |id, args| {
                if let HoldUp::Code(code) = holds(id, |at| args.get(at).copied()) {
                    names.push(self.quick_code.name(pool, code));
                }
            });
        }
        names
    }

    /// A session's next request goes on a link of the code lane. Returns whether the session must
    /// wait until its earlier requests are answered. A session with a link of its own, or in a lane
    /// of slow or large readers, stays there.
    fn wait_for_code_lane(&mut self, id: SessionId) -> bool {
        let is_on_shared_link =
            |session: &Session| session.pins.is_empty() && session.lane == DEFAULT_LANE;
        if !self.sessions.get(id).is_some_and(is_on_shared_link) || self.tracks_several(id) {
            return false;
        }
        let kind = self.sessions.get(id).map(|session| self.kind_of(session));
        if !kind.is_some_and(|kind| self.has_lane_link(of_code(kind))) {
            return false;
        }
        if self.hold_until_caught_up(id) {
            return true;
        }
        if !self.would_overtake(id) {
            self.visit_code_lane(id);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: ScriptCode<'static> = ScriptCode::Body(b"return 1");

    fn at_ms(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    #[test]
    fn code_is_quick_once_it_came_back() {
        let mut code = QuickCode::default();
        let name = code.name(0, BODY);
        assert!(!code.look_up_quick(name));
        code.note_answered(name, at_ms(0));
        assert!(code.look_up_quick(name));
        let other_pool = code.name(1, BODY);
        let function = code.name(0, ScriptCode::Function(b"return 1"));
        assert!(!code.look_up_quick(other_pool) && !code.look_up_quick(function));
    }

    #[test]
    fn slow_code_is_not_quick_for_a_while() {
        let mut code = QuickCode::default();
        let name = code.name(0, BODY);
        code.note_answered(name, at_ms(0));
        code.note_stuck(name, at_ms(100));
        assert!(!code.look_up_quick(name));
        code.note_answered(name, at_ms(100 + CODE_SLOW_MS - 1));
        assert!(!code.look_up_quick(name));
        code.note_answered(name, at_ms(100 + CODE_SLOW_MS));
        assert!(code.look_up_quick(name));
    }

    #[test]
    fn code_in_use_stays_known_and_the_rest_is_forgotten() {
        let mut code = QuickCode::default();
        let (used, unused) = (
            code.name(0, ScriptCode::Body(b"used")),
            code.name(0, ScriptCode::Body(b"unused")),
        );
        code.note_answered(used, at_ms(0));
        code.note_answered(unused, at_ms(0));
        for number in 0..2 * QUICK_CODE_MAX as u64 {
            code.note_answered(number, at_ms(0));
            assert!(code.look_up_quick(used));
            assert!(code.young.len() + code.old.len() <= QUICK_CODE_MAX);
        }
        assert!(!code.look_up_quick(unused));
    }
}
