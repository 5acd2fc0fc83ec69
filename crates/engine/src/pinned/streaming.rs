//! Requests too large to hold. Each is cut through to the server on a streaming link, so that a
//! client that sends slowly holds up no other client.

use respool_protocol::commands::{self, Answer};
use respool_protocol::request::Scanner;

use crate::base::error_text::unknown_command;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ingress::{Blocked, Dispatched, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{LinkKind, Role};
use crate::data_plane::owners::Opening;
use crate::data_plane::scripts::{awaits_body, body_shown};
use crate::data_plane::sent_request::runs_code;
use crate::data_plane::session::{Flags, LargeRequest};
use crate::data_plane::session_state::Holds;
use crate::engine::Engine;
use crate::pinned::Pinned;

impl Engine {
    /// A request that begins with `rest` is too large to hold: checks it, and begins to stream or
    /// to swallow it. Returns how many bytes of `rest` are used, or `None` if the request waits.
    pub(crate) fn begin_large(
        &mut self,
        session_id: SessionId,
        scanner: &Scanner,
        rest: &[u8],
    ) -> Option<usize> {
        let args: Vec<&[u8]> = scanner.spans().iter().map(|span| span.of(rest)).collect();
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let id = commands::resolve(scanner.argc(), arg);
        if awaits_body(id, &args, scanner.len_at_least())
            || self.plane.hold_until_caught_up(session_id)
        {
            return None;
        }
        let opening = match self.identify(session_id, &args, scanner.argc()) {
            Ok(opening) => opening,
            Err(Dispatched::Wait) => return None,
            Err(Dispatched::Done) => {
                self.pinned.swallow(&mut self.plane, session_id, scanner);
                return Some(scanner.scanned());
            }
        };
        let queued = self.transactions.queued_group(&self.plane, session_id);
        let refused = self
            .pinned
            .check_large(&mut self.plane, session_id, &args, scanner.argc(), opening)
            .and_then(|()| {
                let routed =
                    self.plane
                        .switch_large(session_id, opening, &args, scanner.argc(), queued);
                routed.map_err(<[u8]>::to_vec)
            })
            .and_then(|()| {
                let arguments = (scanner.argc(), scanner.spans());
                self.scatter.strip_large(
                    &self.plane,
                    session_id,
                    opening,
                    arguments,
                    &rest[..scanner.scanned()],
                )
            });
        if refused.is_ok()
            && self
                .plane
                .is_paused_large(session_id, &args, scanner.argc())
        {
            self.plane.hold_for_pause(session_id);
            return None;
        }
        let mut stripped = None;
        let link = match refused.map(|other| stripped = other) {
            Err(text) => {
                self.plane.counters.requests += 1;
                self.refuse_queued(session_id, &text);
                None
            }
            Ok(()) => match self.streaming_link(session_id) {
                Ok(link) => {
                    self.plane.counters.requests += 1;
                    self.plane.counters.streamed_requests += 1;
                    Some(link)
                }
                Err(Blocked::Wait) => return None,
                Err(Blocked::Refused(reply)) => {
                    self.plane.counters.requests += 1;
                    self.plane.counters.failed_not_sent += 1;
                    self.plane.answer_reply(session_id, &reply);
                    None
                }
            },
        };
        let used = scanner.scanned();
        let completion = id.and_then(|id| {
            let counted = self.pubsub.count_duty(&self.plane, session_id, id, arg(1));
            let counted = counted.map(Completion::Pubsub);
            counted.or_else(|| self.scatter.naming_duty(&self.plane, session_id, id.get()))
        });
        let session = self.plane.sessions.get_mut(session_id)?;
        match link {
            Some(_) => session.flags.begin_streaming(),
            None => session.flags.swallow(),
        }
        // The reply may come before the end of the request, and other requests may follow that end.
        session.burst.count_as_many();
        let silent = session.flags.is_silent();
        session.rare().large = Some(LargeRequest {
            tail: scanner.tail(),
            link,
            duty: match runs_code(id) {
                true => Some(Completion::Local(LocalCompletion::Code {
                    shown: id.and_then(|id| body_shown(id, &args)),
                })),
                false => completion.or(silent.then_some(Completion::Pass)),
            },
            silent,
        });
        if let Some(link) = link {
            session.take_seq();
            if let Some(link) = self.plane.links.get_mut(link) {
                link.begin_streaming();
                link.tainted |= matches!(opening, Opening::Learned { alone: true, .. });
                link.stream(stripped.as_deref().unwrap_or(&rest[..used]), self.plane.now);
            }
            self.plane.write_link(link);
        }
        self.plane.count_down_silence(session_id);
        Some(used)
    }

    /// The link for one large request of this session.
    fn streaming_link(&mut self, id: SessionId) -> Result<LinkId, Blocked> {
        let Some(session) = self.plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = self.plane.kind_of(session);
        if self.plane.tracks_several(id) {
            self.attach_tracking(id)?;
            self.pinned.lack_caching(&mut self.plane, id);
        }
        let Some(session) = self.plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        if !session.pins.is_empty() {
            if self.pinned.wait_for_own_link(&mut self.plane, id) {
                return Err(Blocked::Wait);
            }
            // A pinned session uses its pinned link, which holds its state at the server.
            return self.usable_link(id);
        }
        self.pinned.wait_for_streaming(&mut self.plane, id)?;
        let link = self.pinned.link_once(&mut self.plane, kind, id);
        link.ok_or_else(|| Blocked::Refused(bound_reply("links-max")))
    }

    /// Takes more bytes of a large request. Returns how many belong to it.
    pub(crate) fn take_large(&mut self, id: SessionId, input: &[u8]) -> usize {
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return input.len();
        };
        let seq = session.next_seq.wrapping_sub(1);
        let Some(large) = session.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            unreachable!("a session that streams or swallows has a large request");
        };
        let (link, silent) = (large.link, large.silent);
        let (used, ends, completion) = match large.tail.scan(input) {
            Ok((used, true)) => (used, true, large.duty.take()),
            Ok((used, false)) => (used, false, None),
            Err(violation) => {
                self.pinned.end_large(&mut self.plane, id);
                if let Some(link) = link {
                    // The error takes the request's place in the order of replies.
                    self.abandon(link);
                    let mut reply = Vec::new();
                    violation.append_reply(&mut reply);
                    self.plane.deliver(id, seq, 1, &reply);
                }
                // A swallowed request has its reply already.
                self.plane.close_when_answered(id);
                return input.len();
            }
        };
        if let Some(link) = link
            && let Some(state) = self.plane.links.get_mut(link)
        {
            state.stream(&input[..used], self.plane.now);
            if ends {
                state.progress = self.plane.now;
                state.ledger.push_back(Entry {
                    duty: completion.is_some(),
                    silent,
                    ..Entry::of(id, seq, self.plane.asked_ms)
                });
                state.duties.extend(completion);
                state.end_streaming();
                self.plane.counters.link_requests += 1;
                self.plane.counters.batches += 1;
            } else if state.out.bytes().len() >= STREAM_BYTES_MAX {
                self.plane.wait_at(id, link);
            }
            self.plane.write_link(link);
        }
        if ends {
            self.pinned.end_large(&mut self.plane, id);
            if link.is_some() {
                // The next request goes on the shared link again, and must not overtake this one
                // there.
                self.plane.hold(id, Holds::DRAIN);
            }
        }
        used
    }

    /// Drops a large request whose rest never comes. It was not executed, and gets no reply.
    pub(crate) fn forget_large(&mut self, id: SessionId) {
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        let link = session.rare().large.take().and_then(|large| large.link);
        session.flags.end_large();
        if let Some(link) = link {
            // The request had the last place in the order of replies.
            session.next_seq = session.next_seq.wrapping_sub(1);
            self.abandon(link);
            self.plane.release(id, Holds::LINK);
        }
        self.plane.close_when_answered(id);
    }
}

/// Bytes of a large request that may wait for its server. At this bound the client is not read.
pub(crate) const STREAM_BYTES_MAX: usize = 1 << 20;

impl Pinned {
    /// Reads the rest of a large request that was answered already, and drops it.
    fn swallow(&mut self, plane: &mut DataPlane, id: SessionId, scanner: &Scanner) {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.flags.swallow();
            session.rare().large = Some(LargeRequest {
                tail: scanner.tail(),
                link: None,
                duty: None,
                silent: false,
            });
        }
    }

    /// Checks a large request by the arguments that have come, as any other request is checked.
    fn check_large(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        args: &[&[u8]],
        argc: usize,
        opening: Opening,
    ) -> Result<(), Vec<u8>> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let flags = plane
            .sessions
            .get(session_id)
            .map(|session| session.flags)
            .unwrap_or_default();
        let too_large = |name: &str| {
            format!("ERR respool: the arguments of '{name}' are too large").into_bytes()
        };
        if let Opening::Row(id) = opening {
            plane.check_shape(session_id, id.get(), argc, arg)?;
            plane.check(session_id, id.get(), id, argc, arg)?;
            let ours = matches!(
                id.get().answer,
                Answer::Session | Answer::Pinned | Answer::Alone
            );
            if ours {
                return Err(too_large(id.get().name));
            }
        } else if opening == Opening::Nothing {
            return Err(unknown_command(args, plane.is_before_7(session_id)));
        }
        if flags.is_tunnel() {
            return Err(too_large(&String::from_utf8_lossy(arg(0))));
        }
        if flags.any(Flags::IN_MULTI) {
            return Err(
                b"ERR respool: the transaction is larger than transaction-bytes-max".to_vec(),
            );
        }
        Ok(())
    }

    /// Waits for a place within the bound of streaming links.
    fn wait_for_streaming(&mut self, plane: &mut DataPlane, id: SessionId) -> Result<(), Blocked> {
        if plane.is_past_deadline(id) || plane.settings.limits.streaming_links_max == 0 {
            return Err(Blocked::Refused(bound_reply("streaming-links-max")));
        }
        if !self.may_stream(plane, id, 1) {
            plane.note_bound(Bound::StreamingLinks);
            plane.begin_to_wait(id);
            plane.streaming_waiters.wait(id);
            plane.hold(id, Holds::LINK);
            return Err(Blocked::Wait);
        }
        plane.streaming_waiters.leave(id);
        plane.set_gives_up_at(id, None);
        Ok(())
    }

    /// Whether this session may have this many streaming links now, before other sessions that
    /// wait.
    pub(crate) fn may_stream(&self, plane: &DataPlane, id: SessionId, needed: usize) -> bool {
        let free = plane.free_streaming_links();
        plane.streaming_waiters.admit(id, needed, free)
    }

    fn end_large(&mut self, plane: &mut DataPlane, id: SessionId) {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.flags.end_large();
            session.rare().large = None;
        }
    }

    /// A link that serves one request of this session. `None`: the bound of links is reached.
    pub(crate) fn link_once(
        &mut self,
        plane: &mut DataPlane,
        kind: LinkKind,
        id: SessionId,
    ) -> Option<LinkId> {
        let role = Role::Streaming { by: id };
        if let Some(spare) = self.take_spare(plane, kind, role) {
            return Some(spare);
        }
        let link = plane.add_link(kind, role)?;
        plane.connect(link);
        Some(link)
    }
}
