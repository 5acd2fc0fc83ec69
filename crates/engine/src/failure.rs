//! What became of a request that got no reply, and how its client is told.

use respool_protocol::encode;

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
}

/// Appends the error reply. The code in front is for programs, the rest for people.
pub(crate) fn append_reply(out: &mut Vec<u8>, fate: Fate, cause: Cause<'_>) {
    let fate = match fate {
        Fate::NotSent => "NOTSENT respool: the command was not executed",
        Fate::Unknown => "UNKNOWN respool: the command was sent and may have been executed",
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
    };
    encode::error(out, format!("{fate}; {cause}").as_bytes());
}

/// Whether an error reply says that a request failed because of its server, and not at a bound of
/// ours.
pub(crate) fn is_servers_fault(reply: &[u8]) -> bool {
    let is_ours = reply.starts_with(b"-NOTSENT ") || reply.starts_with(b"-UNKNOWN ");
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
