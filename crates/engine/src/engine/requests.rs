//! Requests that do not go straight to a server: the data plane takes the simple ones.

use respool_protocol::commands::{self, CommandId, Retry, id};
use respool_protocol::encode;
use respool_protocol::request::{self, Found, Span, Violation};

use crate::access::login_check::may_change_logins;
use crate::base::handle::SessionId;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::{Dispatched, IngressStop, Read, Request, scanned};
use crate::data_plane::own_options::is_control;
use crate::data_plane::unfinished::Unfinished;
use crate::engine::Engine;
use crate::engine::dispatch_kind::DispatchKind;
use crate::local::catalog::{RequestAdmission, names_no_subcommand};
use crate::local::unknown::{UnknownRequest, UnknownWay};

impl Engine {
    /// Takes requests from `input` until it ends or the session must wait. Returns the number of
    /// bytes taken. The caller gives the rest again, with more bytes after it.
    pub(crate) fn take_requests(&mut self, id: SessionId, input: &[u8]) -> usize {
        let Some(mut read) = self.plane.begin_read(id, input) else {
            return input.len();
        };
        loop {
            let goes_on = match self.plane.ingest(id, &mut read) {
                IngressStop::End => false,
                IngressStop::Request { len } => {
                    let (bytes, spans) = read.request(len);
                    let dispatched = self.dispatch_slow(id, bytes, spans);
                    if dispatched == Dispatched::Done {
                        read.advance(len);
                    }
                    dispatched == Dispatched::Done
                }
                IngressStop::Large => {
                    let len = self.pinned.take_large(&mut self.plane, id, read.rest());
                    read.advance(len);
                    true
                }
                IngressStop::Other(found) => self.take_other(id, &mut read, found),
            };
            if !goes_on {
                break;
            }
        }
        self.plane.end_read(id, read)
    }

    /// Takes bytes that are no whole array of arguments. Returns whether the read goes on.
    #[cold]
    #[inline(never)]
    fn take_other(
        &mut self,
        id: SessionId,
        read: &mut Read<'_>,
        found: Result<Found, Violation>,
    ) -> bool {
        let rest = read.rest();
        match found {
            Ok(Found::More) => match self.plane.judge_unfinished(id, &mut read.scanner, rest) {
                Unfinished::Refused => {}
                Unfinished::Large => {
                    let (local, pubsub) = (&mut self.local, &self.pubsub);
                    let used = self.pinned.begin_large(
                        &mut self.plane,
                        id,
                        (&read.scanner, rest),
                        |plane, args, argc| local.identify(plane, id, args, argc),
                        |plane, command, channel| {
                            pubsub.count_completion(plane, id, command, channel)
                        },
                    );
                    let Some(used) = used else {
                        return read.wait_inside();
                    };
                    read.scanner.reset();
                    read.advance(used);
                }
                Unfinished::Held => return read.wait_inside(),
            },
            Ok(Found::Nothing { len } | Found::Request { len }) => read.advance(len),
            Ok(Found::Inline { len }) => {
                match self.dispatch_inline(id, rest.get(..len).unwrap_or(rest)) {
                    Ok(Dispatched::Done) => read.advance(len),
                    Ok(Dispatched::Wait) => return false,
                    Err(violation) => self.plane.refuse_protocol(id, violation),
                }
            }
            Err(violation) => {
                read.scanner.reset();
                self.plane.refuse_protocol(id, violation);
            }
        }
        true
    }

    /// Dispatches a whole request that is for none of the hot paths.
    fn dispatch_slow(&mut self, session_id: SessionId, bytes: &[u8], spans: &[Span]) -> Dispatched {
        let Some(state) = self.plane.begin_slow(session_id, bytes.len()) else {
            return Dispatched::Wait;
        };
        let dispatched = if state.is_tunnel() {
            self.pinned
                .dispatch_in_tunnel(&mut self.plane, session_id, bytes, spans)
        } else {
            let arg = |index: usize| spans[index].of(bytes);
            match commands::resolve(spans.len(), arg) {
                Some(id) => self.dispatch_known(session_id, bytes, spans, id),
                None => self.dispatch_unknown(session_id, bytes, spans),
            }
        };
        if dispatched == Dispatched::Done {
            self.plane.counters.requests += 1;
            self.plane.count_down_silence(session_id);
            if self.plane.tracks_several(session_id) {
                self.pinned.end_caching(&mut self.plane, session_id);
            }
        }
        dispatched
    }

    /// Dispatches a request with a command of the table.
    pub(crate) fn dispatch_known(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        spans: &[Span],
        id: CommandId,
    ) -> Dispatched {
        let request = Request {
            bytes,
            spans,
            id,
            command: id.get(),
        };
        let plane = &mut self.plane;
        // Admission may ask the session's server. So the session first leaves a dead one, or a
        // replica that must not get the request.
        if plane.is_routed(session_id) {
            plane.switch_from_dead(session_id);
            plane.switch_from_replica(session_id, Some(request.command));
        }
        // A refused request has no effect, so admission stands in front of all others.
        let server_refuses = match self.local.admit(plane, session_id, &request) {
            RequestAdmission::Passed { server_refuses } => server_refuses,
            RequestAdmission::Waits => return Dispatched::Wait,
            RequestAdmission::Refused(text) if id == id::EXEC => {
                return self.transactions.refuse_exec(plane, session_id, &text);
            }
            RequestAdmission::Refused(text) => return plane.refuse_queued(session_id, &text),
        };
        // The servers' logins are checked before any server gets a request that may change them.
        if may_change_logins(id) && self.access.hold_until_checked(plane, session_id) {
            return Dispatched::Wait;
        }
        // In a subscription respool answers PING. No server is chosen, and nothing is queued.
        if id == id::PING && plane.is_restricted(session_id) {
            return self.answer_locally(session_id, &request);
        }
        // One server judges the right to set respool's options. The route leads to all of them.
        if is_control(&request) {
            return self.admin.dispatch_control(plane, session_id, &request);
        }
        // The server is chosen before a prefix is removed: each server has its own prefix.
        if self.plane.is_routed(session_id)
            && let Some(dispatched) = self.route(session_id, &request)
        {
            return dispatched;
        }
        let dispatched = match self.plane.removes_prefix(session_id) {
            true => self.dispatch_stripped(session_id, &request, server_refuses),
            false => self.dispatch_at_server(session_id, &request, server_refuses),
        };
        if names_no_subcommand(&request) && self.plane.is_routed(session_id) {
            // The server may find keys in it that respool cannot, and redirect it. A later request
            // must not reach the other node first.
            self.plane.hold_until_caught_up(session_id);
        }
        dispatched
    }

    /// Dispatches a request with a command that the table lacks.
    fn dispatch_unknown(&mut self, id: SessionId, bytes: &[u8], spans: &[Span]) -> Dispatched {
        let request = UnknownRequest::new(bytes, spans);
        if request.is_report() {
            return self.answer_report(id, &request);
        }
        let plane = &mut self.plane;
        match self.local.dispatch_unknown(plane, id, &request) {
            UnknownWay::Dispatched(dispatched) => dispatched,
            UnknownWay::Known(command) => self.dispatch_known(id, bytes, spans, command),
            UnknownWay::Queue { taints } => {
                self.transactions.queue_unknown(plane, id, bytes, taints)
            }
        }
    }

    /// Dispatches a request after its session has switched to its server. `server_refuses`: the
    /// server answers it with an error of its own.
    pub(crate) fn dispatch_at_server(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        server_refuses: bool,
    ) -> Dispatched {
        let plane = &mut self.plane;
        let (bytes, command) = (request.bytes, request.command);
        let reads = command.retry == Retry::Read;
        match DispatchKind::of(request, plane.is_in_multi(id), server_refuses) {
            DispatchKind::Queue => self.queue(id, request),
            DispatchKind::QueueRefused => {
                let taints = names_no_subcommand(request);
                self.transactions.queue_unknown(plane, id, bytes, taints)
            }
            DispatchKind::ServersError => plane.dispatch_on_link(id, bytes, false, None),
            DispatchKind::Local => self.answer_locally(id, request),
            DispatchKind::WaitCommand => self.dispatch_wait(id, request, None),
            DispatchKind::Blocking => {
                let completion = (reads, plane.naming_completion(id, command));
                let admit = |plane: &mut _, multi: &_| self.local.admit_opening(plane, id, multi);
                self.pinned
                    .dispatch_blocking(plane, id, request, completion, admit)
            }
            DispatchKind::Shutdown => {
                let completion = (false, Some(Completion::Shutdown));
                self.pinned.dispatch_emergency(plane, id, bytes, completion)
            }
            DispatchKind::Emergency => {
                let completion = (reads, plane.naming_completion(id, command));
                self.pinned.dispatch_emergency(plane, id, bytes, completion)
            }
            DispatchKind::Script => self.local.dispatch_script(plane, id, request),
            DispatchKind::Counted => self.pubsub.dispatch_counted(plane, id, request),
            DispatchKind::Code => plane.dispatch_code(id, request),
            DispatchKind::Link => plane.dispatch_to_link(id, request),
        }
    }

    fn dispatch_inline(&mut self, id: SessionId, line: &[u8]) -> Result<Dispatched, Violation> {
        let words = request::split_inline(line)?;
        if words.is_empty() {
            return Ok(Dispatched::Done);
        }
        // The dispatched request has other bytes than the line.
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.burst.count_as_many();
        }
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        Ok(scanned(&bytes, |spans| {
            match self.plane.dispatch_hot(id, &bytes, spans) {
                true => Dispatched::Done,
                false => self.dispatch_slow(id, &bytes, spans),
            }
        }))
    }
}
