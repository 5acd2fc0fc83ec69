//! What became of a request that got no reply, and how its client is told.

use respool_protocol::encode;

use crate::engine::Engine;
use crate::entry::Entry;
use crate::session::{Flags, Session};
use crate::settings::AwayError;
use crate::slots::Key;

/// Whether a failed request can have been executed. A third fate, `Replied`, needs no word here:
/// then the reply itself went to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server never got the whole request: it surely was not executed.
    NotSent,
    /// The server may have got the whole request, and gave no answer: it may have been executed.
    Unknown,
}

/// Why a request failed. The fault is a server's or ours; a client's own faults are answered in
/// Redis's words, by who finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause<'a> {
    /// No connection to the server, with what the last attempt came to.
    NoLink { server: &'a str, reason: &'a str },
    /// The connection was lost.
    LinkLost { server: &'a str, reason: &'a str },
    /// The request's deadline passed.
    Deadline { server: &'a str, limit_ms: u32 },
    /// Its keys are another server's than this one's, and no one could be found who has them.
    Moved { server: &'a str },
    /// It was cut through, so only its client can send it again, and its keys are on their way to
    /// another server or there.
    TooLargeToMove { server: &'a str },
    /// A bound of ours, by its name.
    Bound { name: &'static str },
    /// Its client sent it too slowly while others waited at this bound.
    Slow { name: &'static str, least: u64 },
    /// Another worker gave no answer.
    Workers { limit_ms: u32 },
    /// The server has not said whether the client may run it.
    Untold { server: &'a str },
}

impl Cause<'_> {
    /// Whether the server cannot be reached. Then it helps to ask again a moment later.
    fn is_server_away(&self) -> bool {
        matches!(
            self,
            Cause::NoLink { .. } | Cause::LinkLost { .. } | Cause::Untold { .. }
        )
    }
}

/// Appends the error reply. The code in front is for programs, the rest for people.
pub(crate) fn append_reply(out: &mut Vec<u8>, fate: Fate, cause: Cause<'_>) {
    append_reply_as(out, fate, AwayError::NotSent, cause);
}

/// The same. `away` is the code if the server is away and the command was not executed.
pub(crate) fn append_reply_as(out: &mut Vec<u8>, fate: Fate, away: AwayError, cause: Cause<'_>) {
    encode::error(out, &error_text(fate, away, cause));
}

/// The text of that error.
pub(crate) fn error_text(fate: Fate, away: AwayError, cause: Cause<'_>) -> Vec<u8> {
    let (code, fate) = match fate {
        Fate::NotSent if cause.is_server_away() => (away.code(), NOT_EXECUTED),
        Fate::NotSent => (AwayError::NotSent.code(), NOT_EXECUTED),
        Fate::Unknown => ("UNKNOWN", "the command was sent and may have been executed"),
    };
    let cause = match cause {
        Cause::NoLink { server, reason } => format!("no connection to {server}: {reason}"),
        Cause::LinkLost { server, reason } => format!("connection to {server} lost: {reason}"),
        Cause::Deadline { server, limit_ms } => {
            format!("no reply from {server} within {limit_ms} ms")
        }
        Cause::Moved { server } => {
            format!("{server} has its keys no more, and it could not be asked of who has them")
        }
        Cause::TooLargeToMove { server } => format!(
            "{server} does not have its keys just now, and it is too large to be held: send it again"
        ),
        Cause::Bound { name } => format!("the limit {name} is reached"),
        Cause::Slow { name, least } => {
            format!("it came at less than {least} bytes a second while others waited for {name}")
        }
        Cause::Workers { limit_ms } => {
            format!("another worker of respool gave no answer within {limit_ms} ms")
        }
        Cause::Untold { server } => {
            format!("no answer whether this user may run it from {server}")
        }
    };
    format!("{code} respool: {fate}; {cause}").into_bytes()
}

const NOT_EXECUTED: &str = "the command was not executed";

impl Engine {
    /// The code for a request that is being placed, if its server is away.
    pub(crate) fn away_error(&self, session: Key) -> AwayError {
        self.away_error_if(session, |session| session.burst.is_alone(session.next_seq))
    }

    /// The code for a request that was placed, if its server is away.
    pub(crate) fn away_error_of(&mut self, entry: Entry) -> AwayError {
        if self.is_part(entry) {
            // The other parts may have been executed.
            return AwayError::NotSent;
        }
        self.away_error_if(entry.session, |session| {
            let waiting = session.held.len();
            session
                .burst
                .was_alone(entry.seq, session.next_seq, waiting)
        })
    }

    fn away_error_if(&self, session: Key, is_alone: impl Fn(&Session) -> bool) -> AwayError {
        // A request in a transaction cannot be asked again by itself.
        // A client that has not taken the reply before may have sent both in one pipeline.
        let may = |session: &Session| {
            !session.flags.any(Flags::IN_MULTI) && session.out.is_empty() && is_alone(session)
        };
        match self.sessions.get(session).is_some_and(may) {
            true => self.settings.away_error,
            false => AwayError::NotSent,
        }
    }
}

/// The code for a request without a link, if the server has refused that link. A refusal that lasts
/// is no reason to ask again.
pub(crate) fn away_error_at(refusal: Option<&[u8]>, away: AwayError) -> AwayError {
    const PASSING: [&[u8]; 4] = [
        b"ERR max number of clients",
        b"LOADING ",
        b"MASTERDOWN ",
        b"BUSY ",
    ];
    let passes = |words: &[u8]| PASSING.iter().any(|start| words.starts_with(start));
    match refusal.is_none_or(passes) {
        true => away,
        false => AwayError::NotSent,
    }
}

/// Whether an error reply says that a request failed because of its server, and not at a bound of
/// ours.
pub(crate) fn is_servers_fault(reply: &[u8]) -> bool {
    const CODES: [&[u8]; 4] = [
        b"-NOTSENT ",
        b"-UNKNOWN ",
        b"-LOADING respool: the command was not executed; ",
        b"-TRYAGAIN respool: the command was not executed; ",
    ];
    let is_ours = CODES.iter().any(|code| reply.starts_with(code));
    let bound = b"; the limit ";
    is_ours && !reply.windows(bound.len()).any(|text| text == bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_says_whether_the_command_may_have_run() {
        let text = |fate, cause| {
            let mut out = Vec::new();
            append_reply(&mut out, fate, cause);
            String::from_utf8(out).expect("our own text")
        };
        assert_eq!(
            text(
                Fate::NotSent,
                Cause::NoLink {
                    server: "h:1",
                    reason: "refused\r\nx"
                }
            ),
            "-NOTSENT respool: the command was not executed; no connection to h:1: refused  x\r\n"
        );
        let bound = Cause::Bound { name: "links-max" };
        assert!(!is_servers_fault(text(Fate::NotSent, bound).as_bytes()));
        assert!(!is_servers_fault(b"-ERR no\r\n"));
        let lost = Cause::LinkLost {
            server: "h:1",
            reason: "gone",
        };
        assert!(is_servers_fault(text(Fate::Unknown, lost).as_bytes()));
        for away in [AwayError::Loading, AwayError::TryAgain, AwayError::NotSent] {
            let mut out = Vec::new();
            append_reply_as(&mut out, Fate::NotSent, away, lost);
            assert!(is_servers_fault(&out), "{away:?}");
        }
        assert!(!is_servers_fault(b"-LOADING Redis is loading\r\n"));
        assert_eq!(
            text(
                Fate::Unknown,
                Cause::Deadline {
                    server: "h:1",
                    limit_ms: 5
                }
            ),
            "-UNKNOWN respool: the command was sent and may have been executed; no reply from h:1 within 5 ms\r\n"
        );
    }
}
