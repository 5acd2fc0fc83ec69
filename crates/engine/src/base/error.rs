//! The fate of a request that got no reply, and the error that its client gets.

use respool_protocol::encode;

use crate::base::settings::ServerDownError;

/// Whether a failed request may have been executed. The third fate, `Replied`, needs no variant:
/// then the reply itself went to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server never got the whole request: it was surely not executed.
    NotSent,
    /// The server may have got the whole request, and gave no reply: it may have been executed.
    Unknown,
}

impl Fate {
    /// The fate that an error reply of respool tells. `None`: the reply is another one. A script
    /// may give its error the same text, so a caller that cannot trust scripts must not ask.
    pub fn of_reply(reply: &[u8]) -> Option<Fate> {
        match ErrorOutcome::of(reply, ErrorOutcome::Replied) {
            ErrorOutcome::NotSent => Some(Fate::NotSent),
            ErrorOutcome::Unknown => Some(Fate::Unknown),
            ErrorOutcome::Replied | ErrorOutcome::Refused => None,
        }
    }
}

/// The cause of a failed request. A server or respool is at fault. Faults of clients are answered
/// in Redis's words where they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause<'a> {
    /// No connection to the server; `reason`: how the last attempt failed.
    NoLink { server: &'a str, reason: &'a str },
    /// The connection was lost.
    LinkLost { server: &'a str, reason: &'a str },
    /// The request's deadline passed.
    Deadline { server: &'a str, limit_ms: u32 },
    /// The server no longer owns the slot, and the new owner cannot be found.
    Moved { server: &'a str },
    /// The request was too large to hold, so only its client can send it again. Its slot is moving
    /// or has moved to another server.
    TooLargeToMove { server: &'a str },
    /// A limit of respool is reached. `name`: its option.
    Bound { name: &'static str },
    /// A limit of respool without an option is reached. `text` begins with `too`.
    Excess { text: &'static str },
    /// The client sent the request too slowly while others waited at this limit. `least`: bytes a
    /// second.
    Slow { name: &'static str, least: u64 },
    /// Another worker has not answered.
    Workers { limit_ms: u32 },
    /// The server has not said whether the client may run the command.
    Unanswered { server: &'a str },
}

impl Cause<'_> {
    /// Whether the server cannot be reached: then a later attempt may succeed.
    fn is_server_away(&self) -> bool {
        matches!(
            self,
            Cause::NoLink { .. } | Cause::LinkLost { .. } | Cause::Unanswered { .. }
        )
    }

    /// The cause in words.
    pub(crate) fn text(self) -> String {
        match self {
            Cause::NoLink { server, reason } => format!("no connection to {server}: {reason}"),
            Cause::LinkLost { server, reason } => format!("connection to {server} lost: {reason}"),
            Cause::Deadline { server, limit_ms } => {
                format!("no reply from {server} within {limit_ms} ms")
            }
            Cause::Moved { server } => {
                format!("{server} no longer owns the key's slot, and the new owner cannot be found")
            }
            Cause::TooLargeToMove { server } => format!(
                "{server} does not own the key's slot now, and the command is too large to hold: \
                 send it again"
            ),
            Cause::Bound { name } => format!("the limit {name} is reached"),
            Cause::Excess { text } => text.to_owned(),
            Cause::Slow { name, least } => {
                format!("it came at less than {least} bytes a second while others waited at {name}")
            }
            Cause::Workers { limit_ms } => {
                format!("another worker of respool gave no answer within {limit_ms} ms")
            }
            Cause::Unanswered { server } => {
                format!("{server} did not say whether this user may run the command")
            }
        }
    }
}

/// Appends an error reply. The code in front is for programs, the rest for people.
pub(crate) fn append_reply(out: &mut Vec<u8>, fate: Fate, cause: Cause<'_>) {
    append_reply_as(out, fate, ServerDownError::NotSent, cause);
}

/// Appends an error reply. `away`: the code if the server is away and the command was not executed.
pub(crate) fn append_reply_as(
    out: &mut Vec<u8>,
    fate: Fate,
    away: ServerDownError,
    cause: Cause<'_>,
) {
    encode::error(out, &error_text(fate, away, cause));
}

/// The text of an error reply, without the protocol around it. `away` as in [`append_reply_as`].
pub(crate) fn error_text(fate: Fate, away: ServerDownError, cause: Cause<'_>) -> Vec<u8> {
    let (code, fate) = match fate {
        Fate::NotSent if cause.is_server_away() => (away.code(), NOT_EXECUTED),
        Fate::NotSent => (ServerDownError::NotSent.code(), NOT_EXECUTED),
        Fate::Unknown => ("UNKNOWN", "the command was sent and may have been executed"),
    };
    format!("{code} respool: {fate}; {}", cause.text()).into_bytes()
}

const NOT_EXECUTED: &str = "the command was not executed";

/// The code for a request for a link with this error to its handshake. An error that lasts is no
/// reason to try again, so the request gets `NOTSENT`.
pub(crate) fn server_down_error_at(
    handshake_error: Option<&[u8]>,
    away: ServerDownError,
) -> ServerDownError {
    const PASSING: [&[u8]; 4] = [
        b"ERR max number of clients",
        b"LOADING ",
        b"MASTERDOWN ",
        b"BUSY ",
    ];
    let is_passing = |words: &[u8]| PASSING.iter().any(|start| words.starts_with(start));
    match handshake_error.is_none_or(is_passing) {
        true => away,
        false => ServerDownError::NotSent,
    }
}

/// The outcome of a request that is answered with an error, as a metric tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorOutcome {
    /// A server has replied with the error.
    Replied,
    /// respool has refused the request.
    Refused,
    /// The request failed in respool, and surely was not executed.
    NotSent,
    /// The request failed after it was sent, so it may have been executed.
    Unknown,
}

impl ErrorOutcome {
    /// Every outcome, in the order of its number.
    pub const ALL: [ErrorOutcome; 4] = [
        ErrorOutcome::Replied,
        ErrorOutcome::Refused,
        ErrorOutcome::NotSent,
        ErrorOutcome::Unknown,
    ];

    /// The word for it in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorOutcome::Replied => "replied",
            ErrorOutcome::Refused => "refused",
            ErrorOutcome::NotSent => "not_sent",
            ErrorOutcome::Unknown => "unknown",
        }
    }

    /// The outcome that an error reply tells. `otherwise`: the outcome if it is not the error of a
    /// failed request.
    pub(crate) fn of(reply: &[u8], otherwise: ErrorOutcome) -> ErrorOutcome {
        // A share of a request may have got `-LOADING respool: {server}: ...` of its server.
        const NOT_SENT: [&[u8]; 3] = [
            b"-NOTSENT respool: ",
            b"-LOADING respool: the command was not executed; ",
            b"-TRYAGAIN respool: the command was not executed; ",
        ];
        match reply {
            _ if reply.starts_with(b"-UNKNOWN respool: ") => ErrorOutcome::Unknown,
            _ if NOT_SENT.iter().any(|start| reply.starts_with(start)) => ErrorOutcome::NotSent,
            _ => otherwise,
        }
    }
}

/// Whether an error, without the dash in front, is about the login: no credentials, or wrong ones.
pub(crate) fn refuses_login(error: &[u8]) -> bool {
    [b"NOAUTH".as_slice(), b"WRONGPASS"]
        .iter()
        .any(|code| error.starts_with(code))
}

/// Whether an error reply says that a request failed because of its server, and not at a limit of
/// respool.
pub(crate) fn is_servers_fault(reply: &[u8]) -> bool {
    const CODES: [&[u8]; 4] = [
        b"-NOTSENT ",
        b"-UNKNOWN ",
        b"-LOADING respool: the command was not executed; ",
        b"-TRYAGAIN respool: the command was not executed; ",
    ];
    let is_ours = CODES.iter().any(|code| reply.starts_with(code));
    let is_at_limit = |words: &[u8]| reply.windows(words.len()).any(|text| text == words);
    is_ours && !is_at_limit(b"; the limit ") && !is_at_limit(b"; too ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of a failed request follows from its code. Any other error has the outcome that
    /// is given.
    #[test]
    fn outcome_follows_from_the_code() {
        let mut own = Vec::new();
        append_reply(&mut own, Fate::NotSent, Cause::Bound { name: "links-max" });
        assert_eq!(
            ErrorOutcome::of(&own, ErrorOutcome::Replied),
            ErrorOutcome::NotSent
        );
        for (reply, outcome) in [
            ("-UNKNOWN respool: a part of it", ErrorOutcome::Unknown),
            ("-OOM respool: server:1: no", ErrorOutcome::Replied),
            ("-LOADING respool: server:1: no", ErrorOutcome::Replied),
            ("-LOADING Redis is loading", ErrorOutcome::Replied),
            ("-TRYAGAIN Multiple keys", ErrorOutcome::Replied),
            ("-UNKNOWN", ErrorOutcome::Replied),
            ("-", ErrorOutcome::Replied),
            ("-WRONGTYPE about respool: no", ErrorOutcome::Replied),
        ] {
            let found = ErrorOutcome::of(reply.as_bytes(), ErrorOutcome::Replied);
            assert_eq!(found, outcome, "{reply}");
        }
        for away in [ServerDownError::Loading, ServerDownError::TryAgain] {
            let (server, reason) = ("h:1", "gone");
            let cause = Cause::LinkLost { server, reason };
            let mut own = Vec::new();
            append_reply_as(&mut own, Fate::NotSent, away, cause);
            let found = ErrorOutcome::of(&own, ErrorOutcome::Replied);
            assert_eq!(found, ErrorOutcome::NotSent);
        }
        for (number, outcome) in ErrorOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
        }
    }

    #[test]
    fn code_says_whether_the_command_may_have_run() {
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
        let full = Cause::Excess { text: "too many" };
        assert!(!is_servers_fault(text(Fate::NotSent, full).as_bytes()));
        assert!(!is_servers_fault(b"-ERR no\r\n"));
        let lost = Cause::LinkLost {
            server: "h:1",
            reason: "gone",
        };
        assert!(is_servers_fault(text(Fate::Unknown, lost).as_bytes()));
        for away in [
            ServerDownError::Loading,
            ServerDownError::TryAgain,
            ServerDownError::NotSent,
        ] {
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
            "-UNKNOWN respool: the command was sent and may have been executed; \
             no reply from h:1 within 5 ms\r\n"
        );
    }
}
