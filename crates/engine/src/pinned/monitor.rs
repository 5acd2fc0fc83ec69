//! MONITOR: the pinned link of the session becomes a tunnel. Bytes of the client go to the server
//! unchanged, and bytes of the server come back unchanged: the lines of MONITOR and replies cannot
//! be told apart for sure.
//!
//! Two requests end it, and the server answers both after all its other replies. It closes the
//! connection on QUIT, and its reply to RESET is unique.

use respool_protocol::commands::{self, id};
use respool_protocol::reply::{ReplyScanner, Scanned};
use respool_protocol::request::Span;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::egress::PARTIAL_BYTES_MAX;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::link::Tunnel;
use crate::data_plane::session::{Flags, Pins, Session};
use crate::pinned::streaming::STREAM_BYTES_MAX;
use crate::pinned::{DataPlane, Pinned};

impl Pinned {
    /// MONITOR.
    pub(crate) fn monitor(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        if plane.hold_until_caught_up(id) || plane.wait_for_own_link(id) {
            return Dispatched::Wait;
        }
        if plane.sessions.get(id).is_some_and(Session::listens) {
            // Pushes come over another link, and in the tunnel the client could not tell the two
            // streams apart.
            let text = b"ERR respool: before MONITOR, leave all channels";
            return plane.answer_error(id, text);
        }
        if let Err(blocked) = plane.pin(id, Pins::MONITOR) {
            return plane.blocked(id, blocked);
        }
        let Some(session) = plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        session.state.begin_tunnel();
        let silent = session.state.is_silent();
        let link = session.link;
        if let Some(link) = plane.links.get_mut(link) {
            let read_at = plane.read_at;
            link.tunnel = Some(Tunnel::Requested { silent, read_at });
            link.begin_streaming();
            link.stream(request.bytes, plane.now);
        }
        plane.write_link(link);
        Dispatched::Done
    }

    /// Sends a request of the client through the tunnel.
    pub(crate) fn dispatch_in_tunnel(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        bytes: &[u8],
        spans: &[Span],
    ) -> Dispatched {
        let arg = |index: usize| spans[index].of(bytes);
        let Some(link) = plane.sessions.get(session_id).map(|session| session.link) else {
            return Dispatched::Done;
        };
        let Some(state) = plane.links.get_mut(link) else {
            return Dispatched::Done;
        };
        let full = state.ledger.unanswered_bytes() >= STREAM_BYTES_MAX;
        let owed = match state.tunnel {
            Some(Tunnel::Open { owed }) if !full => owed,
            _ => {
                // The reply to MONITOR comes before all others, and no request follows QUIT or
                // RESET. A server that does not read must not make respool hold the client's
                // requests.
                plane.wait_at(session_id, link);
                return Dispatched::Wait;
            }
        };
        let resolved = commands::resolve(spans.len(), arg);
        let checked = resolved.ok_or_else(|| NOT_IN_TUNNEL.to_vec());
        let checked = checked.and_then(|id| {
            plane.check_shape(session_id, id.get(), spans.len(), arg)?;
            plane.check(session_id, id.get(), id, spans.len(), arg)?;
            let allowed = id.get().answer.is_by_server() || matches!(id, id::QUIT | id::RESET);
            allowed.then_some(id).ok_or_else(|| NOT_IN_TUNNEL.to_vec())
        });
        let id = match checked {
            Ok(id) => id,
            Err(_) if owed > 0 => {
                // The error waits for the server's earlier replies.
                plane.wait_at(session_id, link);
                return Dispatched::Wait;
            }
            Err(text) => return plane.answer_error(session_id, &text),
        };
        let request = Request {
            bytes,
            spans,
            id,
            command: id.get(),
        };
        if plane.is_paused(session_id, &request) {
            return plane.hold_for_pause(session_id);
        }
        let tunnel = match id {
            id::QUIT => Tunnel::Quitting,
            id::RESET => Tunnel::Resetting,
            _ => Tunnel::Open { owed: owed + 1 },
        };
        if let Some(state) = plane.links.get_mut(link) {
            state.stream(bytes, plane.now);
            state.tunnel = Some(tunnel);
        }
        plane.write_link(link);
        if matches!(tunnel, Tunnel::Quitting | Tunnel::Resetting) {
            plane.wait_at(session_id, link);
        }
        Dispatched::Done
    }

    /// Passes the server's bytes on. Returns the session if the server has answered its RESET.
    pub(crate) fn take_tunnel_bytes(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        bytes: &[u8],
    ) -> Option<SessionId> {
        let link = plane.links.get_mut(id)?;
        let by = link.role.session();
        // An incomplete frame waits for its end unless it is large, so that respool knows the
        // frames that it passes on.
        let mut kept = std::mem::take(&mut link.unscanned);
        let bytes = if kept.is_empty() {
            bytes
        } else {
            kept.extend_from_slice(bytes);
            &kept
        };
        let (mut passed, mut at) = (0, 0);
        while at < bytes.len() {
            let link = plane.links.get_mut(id)?;
            let begins = !link.scanner.is_inside();
            let rest = &bytes[at..];
            let frame = match link.scanner.scan(rest) {
                Ok(Scanned::Whole(len)) => &rest[..len],
                Ok(Scanned::Fragment) if begins && rest.len() <= PARTIAL_BYTES_MAX => {
                    link.scanner = ReplyScanner::default();
                    link.unscanned = rest.to_vec();
                    break;
                }
                Ok(Scanned::Fragment) => {
                    at = bytes.len();
                    break;
                }
                Err(error) => {
                    plane.lose_link(id, &format!("its bytes are no replies: {error}"));
                    return None;
                }
            };
            let is_reply = match link.scanner.kind() {
                b'>' => false,
                // A line of MONITOR begins with the time. A frame that came in fragments is no
                // status.
                b'+' => begins && !frame[1].is_ascii_digit(),
                _ => true,
            };
            match link.tunnel {
                Some(Tunnel::Requested { .. }) if is_reply => {
                    self.pass_through_tunnel(plane, by, &bytes[passed..at], false);
                    passed = at + frame.len();
                    self.tunnel_answered(plane, id, by, frame);
                }
                Some(Tunnel::Resetting) if frame == RESET => {
                    self.pass_through_tunnel(plane, by, &bytes[passed..at], false);
                    return Some(by);
                }
                Some(Tunnel::Open { owed }) if is_reply => {
                    let owed = owed.saturating_sub(1);
                    link.tunnel = Some(Tunnel::Open { owed });
                    if owed == 0 {
                        plane.wake_waiters(id);
                    }
                }
                _ => {}
            }
            at += frame.len();
        }
        let state = plane.links.get(id);
        let ends_inside = state.is_some_and(|link| link.scanner.is_inside());
        self.pass_through_tunnel(plane, by, &bytes[passed..at], ends_inside);
        None
    }
}

const RESET: &[u8] = b"+RESET\r\n";
const NOT_IN_TUNNEL: &[u8] = b"ERR respool: not allowed while MONITOR is on; send RESET to end it";

impl Pinned {
    /// Passes bytes of the server on to the session. `ends_inside`: the last frame is incomplete,
    /// and no other bytes may come before its rest.
    fn pass_through_tunnel(
        &mut self,
        plane: &mut DataPlane,
        by: SessionId,
        bytes: &[u8],
        ends_inside: bool,
    ) {
        let Some(session) = plane.sessions.get_mut(by) else {
            return;
        };
        if bytes.is_empty() || session.state.replies_are_off() {
            return;
        }
        session.state.remove(Flags::MID_REPLY);
        plane.push_to(by, bytes);
        if !ends_inside {
            plane.end_mid_reply(by);
        } else if let Some(session) = plane.sessions.get_mut(by) {
            session.state |= Flags::MID_REPLY;
        }
    }

    /// Handles the server's reply to MONITOR. If it refuses, the session is unpinned.
    fn tunnel_answered(
        &mut self,
        plane: &mut DataPlane,
        link_id: LinkId,
        by: SessionId,
        reply: &[u8],
    ) {
        let agreed = reply.starts_with(b"+");
        let Some(link) = plane.links.get_mut(link_id) else {
            return;
        };
        let silent = matches!(link.tunnel, Some(Tunnel::Requested { silent: true, .. }));
        link.tunnel = agreed.then_some(Tunnel::Open { owed: 0 });
        if !silent {
            plane.push_to(by, reply);
        }
        plane.wake_waiters(link_id);
        if !agreed {
            if let Some(link) = plane.links.get_mut(link_id) {
                link.end_streaming();
            }
            plane.reopen(link_id);
            if let Some(session) = plane.sessions.get_mut(by) {
                session.state.end_tunnel();
            }
            plane.unpin(by, Pins::MONITOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::data_plane::session_state::Holds;
    use crate::data_plane::test_plane::{plane_with_link, replies_of, request_of, session_of};

    /// A session that has sent MONITOR, with its pinned link.
    fn monitoring() -> (Pinned, DataPlane, SessionId, LinkId) {
        let (mut plane, _) = plane_with_link();
        let (id, mut pinned) = (session_of(&mut plane), Pinned::default());
        let kept = request_of("MONITOR");
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let dispatched = pinned.monitor(&mut plane, id, &request);
        assert_eq!(dispatched, Dispatched::Done);
        let session = plane.sessions.get(id).expect("it is open");
        assert!(session.pins.any(Pins::MONITOR) && session.state.is_tunnel());
        let link = session.link;
        plane.mark_up(link).expect("the link is there");
        (pinned, plane, id, link)
    }

    /// Sends a request of the client through the tunnel.
    fn send(pinned: &mut Pinned, plane: &mut DataPlane, id: SessionId, line: &str) -> Dispatched {
        let kept = request_of(line);
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let dispatched = pinned.dispatch_in_tunnel(plane, id, request.bytes, request.spans);
        if dispatched == Dispatched::Wait {
            plane.release(id, Holds::LINK);
        }
        dispatched
    }

    fn tunnel(plane: &DataPlane, link: LinkId) -> Option<Tunnel> {
        plane.links.get(link).and_then(|link| link.tunnel)
    }

    /// All bytes of the server come back as they are. A line that has not come whole waits.
    #[test]
    fn bytes_of_the_server_pass_unchanged() {
        let (mut pinned, mut plane, id, link) = monitoring();
        assert_eq!(send(&mut pinned, &mut plane, id, "GET a"), Dispatched::Wait);
        pinned.take_tunnel_bytes(&mut plane, link, b"+OK\r\n+17.2 [0 x] \"GE");
        assert_eq!(replies_of(&plane, id), "+OK\r\n");
        assert_eq!(tunnel(&plane, link), Some(Tunnel::Open { owed: 0 }));
        pinned.take_tunnel_bytes(&mut plane, link, b"T\"\r\n");
        assert_eq!(replies_of(&plane, id), "+OK\r\n+17.2 [0 x] \"GET\"\r\n");
        // A line of MONITOR is no reply: the server still owes that of the GET.
        assert_eq!(send(&mut pinned, &mut plane, id, "GET a"), Dispatched::Done);
        pinned.take_tunnel_bytes(&mut plane, link, b"+17.3 [0 x] \"GET\" \"a\"\r\n");
        assert_eq!(tunnel(&plane, link), Some(Tunnel::Open { owed: 1 }));
        pinned.take_tunnel_bytes(&mut plane, link, b"$1\r\nv\r\n");
        assert_eq!(tunnel(&plane, link), Some(Tunnel::Open { owed: 0 }));
        let all = "+OK\r\n+17.2 [0 x] \"GET\"\r\n+17.3 [0 x] \"GET\" \"a\"\r\n$1\r\nv\r\n";
        assert_eq!(replies_of(&plane, id), all);
    }

    /// The reply to RESET ends the tunnel. No request follows RESET.
    #[test]
    fn reply_to_reset_ends_the_tunnel() {
        let (mut pinned, mut plane, id, link) = monitoring();
        pinned.take_tunnel_bytes(&mut plane, link, b"+OK\r\n");
        assert_eq!(send(&mut pinned, &mut plane, id, "RESET"), Dispatched::Done);
        assert_eq!(tunnel(&plane, link), Some(Tunnel::Resetting));
        assert_eq!(send(&mut pinned, &mut plane, id, "PING"), Dispatched::Wait);
        let line = b"+17.2 [0 x] \"GET\" \"a\"\r\n";
        assert_eq!(pinned.take_tunnel_bytes(&mut plane, link, line), None);
        let ended = pinned.take_tunnel_bytes(&mut plane, link, b"+RESET\r\n");
        assert_eq!(ended, Some(id));
    }

    /// A command that respool answers itself is refused behind the server's earlier replies.
    #[test]
    fn own_command_in_a_tunnel_is_refused_in_order() {
        let (mut pinned, mut plane, id, link) = monitoring();
        pinned.take_tunnel_bytes(&mut plane, link, b"+OK\r\n");
        assert_eq!(send(&mut pinned, &mut plane, id, "GET a"), Dispatched::Done);
        let select = "SELECT 1";
        assert_eq!(send(&mut pinned, &mut plane, id, select), Dispatched::Wait);
        pinned.take_tunnel_bytes(&mut plane, link, b"$-1\r\n");
        assert_eq!(send(&mut pinned, &mut plane, id, select), Dispatched::Done);
        let error = String::from_utf8_lossy(NOT_IN_TUNNEL);
        assert_eq!(
            replies_of(&plane, id),
            format!("+OK\r\n$-1\r\n-{error}\r\n")
        );
    }

    /// A refused MONITOR leaves a plain session behind.
    #[test]
    fn refused_monitor_leaves_a_plain_session() {
        let (mut pinned, mut plane, id, link) = monitoring();
        pinned.take_tunnel_bytes(&mut plane, link, b"-NOPERM no\r\n");
        assert_eq!(replies_of(&plane, id), "-NOPERM no\r\n");
        let session = plane.sessions.get(id).expect("it is open");
        assert!(!session.state.is_tunnel() && !session.pins.any(Pins::MONITOR));
        assert_eq!(tunnel(&plane, link), None);
    }
}
