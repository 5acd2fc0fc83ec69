//! The outcome of a call that has no plain reply.

use std::fmt;

use respool_driver::{CallerEnd, CallerSession, EndReason};
use respool_engine::Fate;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The request was surely not executed. It may be sent again. The text says why it failed.
    NotSent(String),
    /// The request was sent, and may have been executed. The text says why no reply has come.
    Unknown(String),
    /// The server has answered with this error, without the dash in front: `WRONGTYPE ...`.
    Server(String),
    /// This client does not send such a request. The text says what to do.
    Invalid(String),
}

impl CallError {
    /// The error that an error reply tells.
    pub(crate) fn of_reply(reply: &[u8]) -> CallError {
        let text = reply.strip_suffix(b"\r\n").unwrap_or(reply);
        let text = text.strip_prefix(b"-").unwrap_or(text);
        let text = String::from_utf8_lossy(text).into_owned();
        match Fate::of_reply(reply) {
            Some(Fate::NotSent) => CallError::NotSent(text),
            Some(Fate::Unknown) => CallError::Unknown(text),
            None => CallError::Server(text),
        }
    }

    /// The error of a call that has ended without a reply.
    pub(crate) fn of_end(session: &CallerSession, end: CallerEnd) -> CallError {
        let text = match end.reason {
            EndReason::Withdrawn => "the caller has ended its wait before the reply".into(),
            _ => text_of(session, end),
        };
        // A reply that ends the session is whole, so a call without one has failed on the way.
        CallError::of_fate(end.fate.unwrap_or(Fate::Unknown), text)
    }

    /// The error of a session that has ended, for its requests without a reply.
    pub(crate) fn of_session_end(session: &CallerSession, end: CallerEnd) -> CallError {
        // If each request has its reply, only a request that follows fails.
        CallError::of_fate(end.fate.unwrap_or(Fate::NotSent), text_of(session, end))
    }

    /// The error of a request that the session did not take whole before its end.
    pub(crate) fn unwritten(session: &CallerSession, end: CallerEnd) -> CallError {
        CallError::NotSent(text_of(session, end))
    }

    /// The error for a request in the child of a fork.
    pub(crate) fn forked() -> CallError {
        CallError::NotSent(FORKED.into())
    }

    /// The error for a request without a command.
    pub(crate) fn without_arguments() -> CallError {
        CallError::Invalid("a request has at least one argument, the command".into())
    }

    fn of_fate(fate: Fate, text: String) -> CallError {
        match fate {
            Fate::NotSent => CallError::NotSent(text),
            Fate::Unknown => CallError::Unknown(text),
        }
    }
}

const FORKED: &str = "the process was forked: open another client in the child";

fn text_of(session: &CallerSession, end: CallerEnd) -> String {
    let text = match end.reason {
        EndReason::Withdrawn => "the caller has taken its requests back",
        EndReason::Closed | EndReason::ServerLost => match session.closed_for() {
            Some(loss) if end.reason == EndReason::ServerLost => return loss.into(),
            Some(rule) => return format!("the session was closed: {rule}"),
            None => "the session was closed",
        },
        EndReason::SessionsMax => {
            "too many callers wait for a place among the sessions of sessions-max"
        }
        EndReason::WorkerEnded => "the client has ended",
        EndReason::Forked => FORKED,
    };
    text.to_owned()
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::NotSent(text) => write!(f, "the request was not executed: {text}"),
            CallError::Unknown(text) => {
                write!(f, "the request may have been executed: {text}")
            }
            CallError::Server(text) => f.write_str(text),
            CallError::Invalid(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for CallError {}
