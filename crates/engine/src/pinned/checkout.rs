//! Requests that wait for a pinned or streaming link: each has a deadline.
//!
//! Both kinds of links have a bound. At it, a request waits until the deadline of any request
//! (`request-timeout-ms`) at most. The timeout of a blocking command runs meanwhile. At the
//! deadline the client gets an error that names the bound. The server was never asked, so nil, or
//! the 0 of a WAIT, would be untrue. Most blocking commands are polled instead: see
//! [`crate::pinned::polling`].
//!
//! Rejected: to poll WAIT on a shared link. In a transaction a server counts the replicas that have
//! the last write of that link, so the writes of all sessions move the goal, and it does not ask
//! the replicas how far they are. They say so once a second. Most answers would be 0.

use respool_protocol::commands::id;

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::session_state::Holds;
use crate::pinned::Pinned;

/// The timeout of a blocking request, milliseconds. `None`: it waits for ever or for weeks, or the
/// timeout is malformed. The server refuses a malformed one when there is a link, since servers
/// differ in the formats that they accept.
pub(crate) fn block_timeout_ms(request: &Request<'_>) -> Option<u32> {
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

/// The index of the argument after BLOCK in an XREAD or XREADGROUP.
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

impl Pinned {
    /// Handles the placing of a request that may wait at the server. If it waits for a link, it
    /// gets a deadline, its own timeout at most. `was_waiting`: it waited before.
    pub(crate) fn note_wait(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        (was_waiting, dispatched): (bool, Dispatched),
    ) {
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let waits = session.state.holds().any(Holds::ROOM);
        if waits && session.state.input_has_ended() {
            // The client has left: a reply of the server must not be lost with it.
            return plane.close_when_answered(id);
        }
        match (dispatched, waits) {
            (Dispatched::Done, _) => plane.set_deadline(id, None),
            (Dispatched::Wait, true) if !was_waiting => {
                let own = block_timeout_ms(request).map(|ms| plane.now.plus_ms(ms));
                let at = [own, plane.deadline_of(id)].into_iter().flatten().min();
                plane.set_deadline(id, at);
            }
            (Dispatched::Wait, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_protocol::commands;
    use respool_protocol::encode;
    use respool_protocol::request::{Found, RequestScanner};

    fn timeout_of(words: &str) -> Option<u32> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let mut scanner = RequestScanner::default();
        assert!(matches!(
            scanner.scan(&bytes, true),
            Ok(Found::Request { .. })
        ));
        let id = commands::lookup(words[0].as_bytes()).expect("a command");
        block_timeout_ms(&Request {
            bytes: &bytes,
            spans: scanner.spans(),
            id,
            command: id.get(),
        })
    }

    /// Each blocking command has its timeout in a place and unit of its own.
    #[test]
    fn timeout_is_read_where_each_command_has_it() {
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
            assert_eq!(timeout_of(request), Some(ms), "{request}");
        }
        for endless_or_wrong in [
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
            assert_eq!(timeout_of(endless_or_wrong), None, "{endless_or_wrong}");
        }
    }
}
