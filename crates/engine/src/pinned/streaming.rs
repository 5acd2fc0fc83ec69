//! Requests too large to hold. Each is cut through to the server on a streaming link, so that a
//! client that sends slowly holds up no other client.

use respool_protocol::commands;
use respool_protocol::commands::CommandId;
use respool_protocol::request::{RequestScanner, Span};

use crate::base::error_text::unknown_command;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Action;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pubsub::PubsubCompletion;
use crate::data_plane::ingress::{Blocked, Dispatched, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkRole;
use crate::data_plane::owners::LeadingCommand;
use crate::data_plane::scripts::{awaits_body, body_shown};
use crate::data_plane::sent_request::runs_code;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::unfinished::LargeRequest;
use crate::pinned::Pinned;

/// The beginning of a large request.
struct LargeStart<'a> {
    /// The link that gets it. `None`: it was refused.
    link: Option<LinkId>,
    /// The bytes that have come, as the server gets them.
    sent: &'a [u8],
    /// The completion of its reply, if that is not simply passed on.
    completion: Option<Completion>,
    /// Whether it may leave state on the connection.
    taints: bool,
}

impl Pinned {
    /// Begins to stream a large request, or to swallow it. `rest`: the bytes that have come.
    /// `identify`: the command by the first arguments and their number. `Err`: the session waits
    /// for the server's answer, or is closed. `counted`: the completion of its reply, if the reply
    /// counts subscribers of the channel. Returns how many bytes of `rest` are used, or `None` if
    /// the request waits.
    pub(crate) fn begin_large(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        (scanner, rest): (&RequestScanner, &[u8]),
        identify: impl FnOnce(&mut DataPlane, &[&[u8]], usize) -> Result<LeadingCommand, Dispatched>,
        counted: impl FnOnce(&DataPlane, CommandId, &[u8]) -> Option<PubsubCompletion>,
    ) -> Option<usize> {
        let args: Vec<&[u8]> = scanner.spans().iter().map(|span| span.of(rest)).collect();
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let (id, argc) = (commands::resolve(scanner.argc(), arg), scanner.argc());
        let is_awaited = awaits_body(id, &args, scanner.len_at_least());
        if is_awaited || plane.hold_until_caught_up(session_id) {
            return None;
        }
        if let Some(session) = plane.sessions.get_mut(session_id) {
            session.last_command = id;
        }
        let opening = match identify(plane, &args, argc) {
            Ok(opening) => opening,
            Err(Dispatched::Wait) => return None,
            Err(Dispatched::Done) => {
                self.swallow(plane, session_id, scanner);
                return Some(scanner.scanned());
            }
        };
        let counted = id.and_then(|id| counted(plane, id, arg(1)));
        let head = &rest[..scanner.scanned()];
        let checked = self.check_large(plane, session_id, opening, (argc, scanner.spans()), head);
        if checked.is_ok() && plane.is_paused_large(session_id, &args, argc) {
            plane.hold_for_pause(session_id);
            return None;
        }
        let (link, stripped) = match checked {
            Ok(stripped) => (self.dispatch_large(plane, session_id)?, stripped),
            Err(text) => {
                plane.counters.requests += 1;
                plane.refuse_queued(session_id, &text);
                (None, None)
            }
        };
        let completion = match runs_code(id) {
            true => Some(Completion::Local(LocalCompletion::Code {
                shown: id.and_then(|id| body_shown(id, &args)),
            })),
            false => {
                let counted = counted.map(Completion::Pubsub);
                id.and_then(|id| counted.or_else(|| plane.naming_completion(session_id, id.get())))
            }
        };
        let large = LargeStart {
            link,
            sent: stripped.as_deref().unwrap_or(head),
            completion,
            taints: matches!(opening, LeadingCommand::Learned { alone: true, .. }),
        };
        self.start_large(plane, session_id, scanner, large);
        Some(scanner.scanned())
    }

    /// Checks a large request by the arguments that have come, and switches to its server. Returns
    /// the bytes without prefixes, if respool removes them, or the error.
    fn check_large(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        opening: LeadingCommand,
        (argc, spans): (usize, &[Span]),
        head: &[u8],
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        let args: Vec<&[u8]> = spans.iter().map(|span| span.of(head)).collect();
        let row = match opening {
            LeadingCommand::Row(row) => Some(row),
            LeadingCommand::Learned { .. } => None,
            LeadingCommand::Nothing => {
                return Err(unknown_command(&args, plane.is_before_7(id)));
            }
        };
        self.check_size(plane, id, &args, argc, row)?;
        let queued = plane.queued_group(id);
        let switched = plane.switch_large(id, opening, &args, argc, queued);
        switched.map_err(<[u8]>::to_vec)?;
        plane.strip_large(id, opening, (argc, spans), head)
    }

    /// The link for a large request. `Some(None)`: it was refused. `None`: it waits.
    fn dispatch_large(&mut self, plane: &mut DataPlane, id: SessionId) -> Option<Option<LinkId>> {
        let link = match self.streaming_link(plane, id) {
            Ok(link) => {
                plane.counters.streamed_requests += 1;
                Some(link)
            }
            Err(Blocked::Wait) => return None,
            Err(Blocked::Refused(reply)) => {
                plane.counters.failed_not_sent += 1;
                plane.answer_reply(id, &reply);
                None
            }
        };
        plane.counters.requests += 1;
        Some(link)
    }

    /// The link for one large request of this session.
    fn streaming_link(&mut self, plane: &mut DataPlane, id: SessionId) -> Result<LinkId, Blocked> {
        if plane.tracks_several(id) {
            plane.attach_tracking(id)?;
            plane.lack_caching(id);
        }
        let is_pinned = |session: &Session| !session.pins.is_empty();
        if plane.sessions.get(id).is_some_and(is_pinned) {
            if plane.wait_for_own_link(id) {
                return Err(Blocked::Wait);
            }
            // A pinned session uses its pinned link, which holds its state at the server.
            return plane.usable_link(id);
        }
        self.streaming_link_alone(plane, id)
    }

    /// Begins a large request: it streams to its link, or is dropped.
    fn start_large(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        scanner: &RequestScanner,
        large: LargeStart<'_>,
    ) {
        let LargeStart {
            link,
            sent,
            completion,
            taints,
        } = large;
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        match link {
            Some(_) => session.state.begin_streaming(),
            None => session.state.swallow(),
        }
        // The reply may come before the end of the request, and other requests may follow that end.
        session.burst.count_as_many();
        let silent = session.state.is_silent();
        session.rare().large = Some(LargeRequest {
            tail: scanner.tail(),
            link,
            completion: completion.or(silent.then_some(Completion::Pass)),
            silent,
        });
        if let Some(link) = link {
            session.take_seq();
            if let Some(link) = plane.links.get_mut(link) {
                link.begin_streaming();
                link.tainted |= taints;
                link.stream(sent, plane.now);
            }
            plane.write_link(link);
        }
        plane.count_down_silence(id);
    }

    /// A streaming link for one large request of a session without a link of its own.
    fn streaming_link_alone(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
    ) -> Result<LinkId, Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = plane.kind_of(session);
        plane.wait_for_streaming(id)?;
        let link = plane.link_once(kind, id);
        link.ok_or_else(|| Blocked::Refused(bound_reply("links-max")))
    }

    /// Takes more bytes of a large request. Returns how many belong to it.
    pub(crate) fn take_large(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        input: &[u8],
    ) -> usize {
        let Some(session) = plane.sessions.get_mut(id) else {
            return input.len();
        };
        let seq = session.next_seq.wrapping_sub(1);
        let Some(large) = session.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            unreachable!("a session that streams or swallows has a large request");
        };
        let (link, silent, command) = (large.link, large.silent, session.last_command);
        let (used, ends, completion) = match large.tail.scan(input) {
            Ok((used, true)) => (used, true, large.completion.take()),
            Ok((used, false)) => (used, false, None),
            Err(violation) => {
                self.end_large(plane, id);
                if let Some(link) = link {
                    // The error takes the request's place in the order of replies.
                    self.abandon(plane, link);
                    let mut reply = Vec::new();
                    violation.append_reply(&mut reply);
                    plane.note_if_own_error(id, command, &reply);
                    plane.deliver(id, seq, 1, &reply);
                }
                // A swallowed request has its reply already.
                plane.close_when_answered(id);
                return input.len();
            }
        };
        if let Some(link) = link
            && let Some(state) = plane.links.get_mut(link)
        {
            state.stream(&input[..used], plane.now);
            if ends {
                state.progress = plane.now;
                let entry = Entry {
                    command: command.into(),
                    ..Entry::of(id, seq, plane.read_at)
                        .with_completion(completion.is_some())
                        .silenced(silent)
                };
                let now = plane.now_stamp;
                state.ledger.push_streamed(entry, completion, now);
                state.end_streaming();
                plane.counters.link_requests += 1;
                plane.counters.batches += 1;
            } else if state.ledger.unanswered_bytes() >= STREAM_BYTES_MAX {
                plane.wait_at(id, link);
            }
            plane.write_link(link);
        }
        if ends {
            self.end_large(plane, id);
            match link {
                // The next request goes on the shared link again, and must not overtake this one
                // there.
                Some(_) => plane.hold(id, Holds::CATCH_UP),
                None => plane.hold_to_leave_pool(id),
            }
        }
        used
    }

    /// Drops a large request whose rest is not taken any more: its client sends no more, or its
    /// session is closing, and no bytes are held.
    pub(crate) fn forget_cut_request(&mut self, plane: &mut DataPlane, id: SessionId) {
        let is_cut = |session: &Session| {
            session.state.is_inside_large()
                && (session.state.input_has_ended() || session.state.is_closing())
                && session.held.is_empty()
        };
        if plane.sessions.get(id).is_some_and(is_cut) {
            self.forget_large(plane, id);
        }
    }

    /// Drops a large request without an end. It was not executed, and gets no reply.
    fn forget_large(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let link = session.rare().large.take().and_then(|large| large.link);
        session.state.end_large();
        if let Some(link) = link {
            // The request had the last place in the order of replies.
            session.next_seq = session.next_seq.wrapping_sub(1);
            self.abandon(plane, link);
            plane.release(id, Holds::LINK);
        }
        plane.close_when_answered(id);
    }

    /// Closes the link of a session that sent a large request in part. No other request may follow
    /// the fragment.
    pub(crate) fn abandon(&mut self, plane: &mut DataPlane, link: LinkId) {
        plane.push_action(Action::CloseLink(link));
        if let Some(LinkRole::Pinned { by }) = plane.links.get(link).map(|link| link.role) {
            let unsent = self.lose_pins(plane, by, link, (true, true));
            debug_assert!(unsent.is_none(), "the link counts as up");
        }
        plane.remove_link(link);
        plane.next_streaming();
    }
}

/// Bytes of a large request that may wait for its server. At this bound the client is not read.
pub(crate) const STREAM_BYTES_MAX: usize = 1 << 20;

impl Pinned {
    /// Reads the rest of a large request that was answered already, and drops it.
    fn swallow(&mut self, plane: &mut DataPlane, id: SessionId, scanner: &RequestScanner) {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.state.swallow();
            session.rare().large = Some(LargeRequest {
                tail: scanner.tail(),
                link: None,
                completion: None,
                silent: false,
            });
        }
    }

    /// Checks a large request by the arguments that have come, as any other request is checked.
    /// `row`: its row in the table, if it has one.
    fn check_size(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        args: &[&[u8]],
        argc: usize,
        row: Option<CommandId>,
    ) -> Result<(), Vec<u8>> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let state = plane
            .sessions
            .get(session_id)
            .map(|session| session.state)
            .unwrap_or_default();
        let too_large = |name: &str| {
            format!("ERR respool: the arguments of '{name}' are too large").into_bytes()
        };
        if let Some(id) = row {
            plane.check_shape(session_id, id.get(), argc, arg)?;
            plane.check(session_id, id.get(), id, argc, arg)?;
            if id.get().answer.avoids_shared_link() {
                return Err(too_large(id.get().name));
            }
        }
        if state.is_tunnel() {
            return Err(too_large(&String::from_utf8_lossy(arg(0))));
        }
        if state.any(Flags::IN_MULTI) {
            return Err(
                b"ERR respool: the transaction is larger than transaction-bytes-max".to_vec(),
            );
        }
        Ok(())
    }

    fn end_large(&mut self, plane: &mut DataPlane, id: SessionId) {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.state.end_large();
            session.rare().large = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::id;

    use super::*;
    use crate::data_plane::test_plane::{plane_with_link, replies_of, session_of};

    /// The value of the large request, which is cut in the middle.
    const VALUE: &str = "0123456789";
    const HEAD: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$10\r\n01234";
    const REST: &[u8] = b"56789\r\n";

    /// A session that has sent the head of a large SET, opened as `opening`. Returns how many bytes
    /// were used.
    fn begun(opening: LeadingCommand) -> (Pinned, DataPlane, SessionId, Option<usize>) {
        let (mut plane, _) = plane_with_link();
        let (id, mut pinned) = (session_of(&mut plane), Pinned::default());
        let mut scanner = RequestScanner::default();
        scanner.scan(HEAD, true).expect("the request is valid");
        let used = pinned.begin_large(
            &mut plane,
            id,
            (&scanner, HEAD),
            |_, _, _| Ok(opening),
            |_, _, _| None,
        );
        (pinned, plane, id, used)
    }

    /// The streaming link of a session, if it has one.
    fn streaming_link(plane: &DataPlane, id: SessionId) -> Option<LinkId> {
        let mut links = plane.links.iter();
        let own = links.find(|(_, link)| link.role == LinkRole::Streaming { by: id });
        own.map(|(link, _)| link)
    }

    /// The bytes that a link's server gets once the link is up.
    fn sent_on(plane: &mut DataPlane, link: LinkId) -> Vec<u8> {
        plane.mark_up(link).expect("the link is there");
        let link = plane.links.get(link).expect("the link is there");
        link.pending().to_vec()
    }

    /// The fragments of a large request go on one link, and the next request waits for its reply.
    #[test]
    fn large_request_is_cut_through_on_its_own_link() {
        let (mut pinned, mut plane, id, used) = begun(LeadingCommand::Row(id::SET));
        let used = used.expect("it does not wait");
        let link = streaming_link(&plane, id).expect("it has a link");
        let session = plane.sessions.get(id).expect("it is open");
        assert!(session.state.is_streaming() && session.depth() == 1);
        // The bytes behind the scanned ones come again, and then the rest.
        let left = [&HEAD[used..], REST, b"*1\r\n"].concat();
        let taken = pinned.take_large(&mut plane, id, &left);
        assert_eq!(
            taken,
            left.len() - 4,
            "the next request is not a part of it"
        );
        let session = plane.sessions.get(id).expect("it is open");
        assert!(!session.state.is_inside_large());
        assert!(session.state.holds().any(Holds::CATCH_UP));
        let sent = sent_on(&mut plane, link);
        assert_eq!(sent, [HEAD, REST].concat());
        let ledger = &plane.links.get(link).expect("the link is there").ledger;
        assert_eq!(ledger.len(), 1);
        assert_eq!(plane.counters.streamed_requests, 1);
        assert!(String::from_utf8_lossy(&sent).contains(VALUE));
    }

    /// A request that is refused at its head is read to its end, and gets one error.
    #[test]
    fn refused_large_request_is_swallowed() {
        let (mut pinned, mut plane, id, used) = begun(LeadingCommand::Nothing);
        let used = used.expect("it does not wait");
        assert!(streaming_link(&plane, id).is_none());
        let error = replies_of(&plane, id);
        assert!(error.starts_with("-ERR unknown command 'SET'"), "{error}");
        let left = [&HEAD[used..], REST, b"PING\r\n"].concat();
        let taken = pinned.take_large(&mut plane, id, &left);
        assert_eq!(taken, left.len() - 6);
        let session = plane.sessions.get(id).expect("it is open");
        assert!(!session.state.is_inside_large() && session.depth() == 0);
        assert_eq!(replies_of(&plane, id), error);
    }

    /// A client that leaves in the middle gets no reply, and the half request's link is closed.
    #[test]
    fn half_request_of_a_client_that_left_closes_its_link() {
        let (mut pinned, mut plane, id, _) = begun(LeadingCommand::Row(id::SET));
        let link = streaming_link(&plane, id).expect("it has a link");
        pinned.forget_cut_request(&mut plane, id);
        assert!(plane.links.get(link).is_some(), "the client may send more");
        if let Some(session) = plane.sessions.get_mut(id) {
            session.state.end_input();
        }
        pinned.forget_cut_request(&mut plane, id);
        assert!(plane.links.get(link).is_none());
        let closes =
            |action: &Action| matches!(action, Action::CloseLink(closed) if *closed == link);
        assert!(plane.turn.actions.iter().any(closes));
        let session = plane.sessions.get(id).expect("the driver closes it");
        assert!(session.is_caught_up() && session.state.is_closing());
        assert_eq!(replies_of(&plane, id), "");
    }
}
