//! The outcome of a call that has no plain reply.

use std::fmt;

use respool_driver::{CallerEnd, EndReason};
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
    /// The request is none for a client with shared connections. The text says what to do.
    Invalid(String),
}

impl CallError {
    /// The error that an error reply tells.
    pub(crate) fn of_reply(reply: &[u8]) -> CallError {
        let text = reply.trim_ascii_end();
        let text = text.strip_prefix(b"-").unwrap_or(text);
        let text = String::from_utf8_lossy(text).into_owned();
        match Fate::of_reply(reply) {
            Some(Fate::NotSent) => CallError::NotSent(text),
            Some(Fate::Unknown) => CallError::Unknown(text),
            None => CallError::Server(text),
        }
    }

    /// The error of a session that has ended without a reply.
    pub(crate) fn of_end(end: CallerEnd) -> CallError {
        let text = match end.reason {
            EndReason::Withdrawn => "no reply has come within the limit of the caller",
            EndReason::Closed => "the engine has closed the session; a notice says why",
            EndReason::SessionsMax => "as many calls as sessions-max allows are under way",
            EndReason::WorkerEnded => "the client has ended",
        };
        match end.fate {
            Some(Fate::NotSent) => CallError::NotSent(text.into()),
            // A reply that ends the session is whole.
            Some(Fate::Unknown) | None => CallError::Unknown(text.into()),
        }
    }
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
