//! MONITOR: the link of the session becomes a tunnel. What the client sends goes to the server as
//! it is, and what the server sends comes back as it is, since nothing tells a reply from what the
//! server shows.
//!
//! Two requests end it, and both are the server's to answer, behind all that it still owes: QUIT,
//! by closing the connection, and RESET, by a reply that nothing else is like.

use respool_protocol::commands::{self, Answer, id};
use respool_protocol::reply::{Scanned, Scanner};
use respool_protocol::request::Span;

use crate::engine::Engine;
use crate::large::STREAM_BYTES_MAX;
use crate::replies::PARTIAL_BYTES_MAX;
use crate::requests::{Placed, Request};
use crate::session::{Flags, Pins, Session};
use crate::slots::Key;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// MONITOR was put on the link. `silent`: its client wants no reply. `at_ms`: when the request
    /// was read, [`crate::time::Time::stamp_ms`].
    Asked { silent: bool, at_ms: u32 },
    /// The server has agreed, and owes so many replies.
    Open { owed: u32 },
    /// QUIT was sent.
    Quitting,
    /// RESET was sent.
    Resetting,
}

impl Engine {
    pub(crate) fn monitor(&mut self, key: Key, request: &Request<'_>) -> Placed {
        if self.hold_until_caught_up(key) || self.wait_for_own_link(key) {
            return Placed::Wait;
        }
        if self.sessions.get(key).is_some_and(Session::listens) {
            // From two connections of the server, nothing would keep the two streams apart.
            let text = b"ERR respool: before MONITOR, leave all channels";
            return self.answer_error(key, text);
        }
        if let Err(blocked) = self.pin(key, Pins::MONITOR) {
            return self.blocked(key, blocked);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        session.flags |= Flags::TUNNEL;
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        let link = session.link;
        if let Some(link) = self.links.get_mut(link) {
            let at_ms = self.asked_ms;
            link.tunnel = Some(Tunnel::Asked { silent, at_ms });
            link.begin_streaming();
            link.stream(request.bytes, self.now);
        }
        self.write_link(link);
        Placed::Done
    }

    /// What its client sends.
    pub(crate) fn place_in_tunnel(&mut self, key: Key, bytes: &[u8], spans: &[Span]) -> Placed {
        let arg = |index: usize| spans[index].of(bytes);
        let Some(link) = self.sessions.get(key).map(|session| session.link) else {
            return Placed::Done;
        };
        let Some(state) = self.links.get_mut(link) else {
            return Placed::Done;
        };
        let full = state.out.bytes().len() >= STREAM_BYTES_MAX;
        let owed = match state.tunnel {
            Some(Tunnel::Open { owed }) if !full => owed,
            _ => {
                // The reply to MONITOR comes before all others, nothing comes behind the end; and a
                // server that does not read must not make us hold what its client sends.
                self.wait_at(key, link);
                return Placed::Wait;
            }
        };
        let resolved = commands::resolve(spans.len(), arg);
        let checked = resolved.ok_or_else(|| NOT_IN_TUNNEL.to_vec());
        let checked = checked.and_then(|id| {
            self.check_shape(key, id.get(), spans.len(), arg)?;
            self.check(key, id.get(), id, spans.len(), arg)?;
            let servers = matches!(
                id.get().answer,
                Answer::Server | Answer::Alone | Answer::Conditional(_)
            );
            let allowed = servers || matches!(id, id::QUIT | id::RESET);
            allowed.then_some(id).ok_or_else(|| NOT_IN_TUNNEL.to_vec())
        });
        let id = match checked {
            Ok(id) => id,
            Err(_) if owed > 0 => {
                // The server's replies come first.
                self.wait_at(key, link);
                return Placed::Wait;
            }
            Err(text) => return self.answer_error(key, &text),
        };
        let request = Request {
            bytes,
            spans,
            id,
            command: id.get(),
        };
        if self.is_paused(key, &request) {
            return self.hold_for_pause(key);
        }
        let tunnel = match id {
            id::QUIT => Tunnel::Quitting,
            id::RESET => Tunnel::Resetting,
            _ => Tunnel::Open { owed: owed + 1 },
        };
        if let Some(state) = self.links.get_mut(link) {
            state.stream(bytes, self.now);
            state.tunnel = Some(tunnel);
        }
        self.write_link(link);
        if matches!(tunnel, Tunnel::Quitting | Tunnel::Resetting) {
            self.wait_at(key, link);
        }
        Placed::Done
    }

    /// What the server sends.
    pub(crate) fn take_tunnel_bytes(&mut self, key: Key, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let by = link.role.captor();
        // What has not come whole waits for its end, if that is not too far: so it is known what is
        // passed on.
        let mut kept = std::mem::take(&mut link.partial);
        let bytes = if kept.is_empty() {
            bytes
        } else {
            kept.extend_from_slice(bytes);
            &kept
        };
        let (mut passed, mut at) = (0, 0);
        while at < bytes.len() {
            let Some(link) = self.links.get_mut(key) else {
                return;
            };
            let begins = !link.scanner.is_inside();
            let rest = &bytes[at..];
            let frame = match link.scanner.scan(rest) {
                Ok(Scanned::Whole(len)) => &rest[..len],
                Ok(Scanned::Part) if begins && rest.len() <= PARTIAL_BYTES_MAX => {
                    link.scanner = Scanner::default();
                    link.partial = rest.to_vec();
                    break;
                }
                Ok(Scanned::Part) => {
                    at = bytes.len();
                    break;
                }
                Err(error) => {
                    return self.lose_link(key, &format!("its bytes are no replies: {error}"));
                }
            };
            let is_reply = match link.scanner.kind() {
                b'>' => false,
                // What it shows begins with the time; one that came in parts is no status.
                b'+' => begins && !frame[1].is_ascii_digit(),
                _ => true,
            };
            match link.tunnel {
                Some(Tunnel::Asked { .. }) if is_reply => {
                    self.tell_tunnel(by, &bytes[passed..at], false);
                    passed = at + frame.len();
                    self.tunnel_answered(key, by, frame);
                }
                Some(Tunnel::Resetting) if frame == RESET => {
                    self.tell_tunnel(by, &bytes[passed..at], false);
                    self.reset(by);
                    return;
                }
                Some(Tunnel::Open { owed }) if is_reply => {
                    let owed = owed.saturating_sub(1);
                    link.tunnel = Some(Tunnel::Open { owed });
                    if owed == 0 {
                        self.wake_waiters(key);
                    }
                }
                _ => {}
            }
            at += frame.len();
        }
        let state = self.links.get(key);
        let ends_inside = state.is_some_and(|link| link.scanner.is_inside());
        self.tell_tunnel(by, &bytes[passed..at], ends_inside);
    }

    /// Passes on bytes of the server. `ends_inside`: the rest of the last reply follows, and no
    /// other bytes may come in between.
    fn tell_tunnel(&mut self, by: Key, bytes: &[u8], ends_inside: bool) {
        let Some(session) = self.sessions.get_mut(by) else {
            return;
        };
        if bytes.is_empty() || session.flags.any(Flags::SILENT) {
            return;
        }
        session.flags.remove(Flags::MID_REPLY);
        self.push_to(by, bytes);
        if !ends_inside {
            self.end_mid_reply(by);
        } else if let Some(session) = self.sessions.get_mut(by) {
            session.flags |= Flags::MID_REPLY;
        }
    }

    /// What the server says to MONITOR: if it refuses, the session goes on as it was.
    fn tunnel_answered(&mut self, key: Key, by: Key, reply: &[u8]) {
        let agreed = reply.starts_with(b"+");
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let silent = matches!(link.tunnel, Some(Tunnel::Asked { silent: true, .. }));
        link.tunnel = agreed.then_some(Tunnel::Open { owed: 0 });
        if !silent {
            self.push_to(by, reply);
        }
        self.wake_waiters(key);
        if !agreed {
            if let Some(link) = self.links.get_mut(key) {
                link.end_streaming();
            }
            self.reopen(key);
            if let Some(session) = self.sessions.get_mut(by) {
                session.flags.remove(Flags::TUNNEL);
            }
            self.unpin(by, Pins::MONITOR);
        }
    }
}

const RESET: &[u8] = b"+RESET\r\n";
const NOT_IN_TUNNEL: &[u8] =
    b"ERR respool: while MONITOR is on, this is not possible: RESET ends it";
