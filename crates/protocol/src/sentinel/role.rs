//! Reads the answer to ROLE: the role that a server reports.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use super::answers::{endpoint_of, items, list, name_of, number_of, read, text};
use super::{AnswerError, Endpoint, PRIMARIES_MAX, REPLICAS_MAX};
use crate::value::Value;

/// The role that a server reports itself: ROLE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedRole {
    /// A primary: it takes writes.
    Primary {
        /// Replication offset: bytes that it has written to the stream.
        offset_bytes: u64,
        /// Its replicas, each with the offset that it has acknowledged.
        replicas: Vec<(Endpoint, u64)>,
    },
    /// A replica: it copies its primary.
    Replica {
        /// Its primary; `None` if the answer has no address.
        of: Option<Endpoint>,
        /// State of its replication.
        progress: Progress,
        /// Replication offset: bytes of the stream that it has applied; `None` before the first.
        offset_bytes: Option<u64>,
    },
    /// A Sentinel.
    Sentinel {
        /// Names of the primaries that it watches.
        names: Vec<String>,
    },
}

/// The state of a replica's replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has no connection to its primary, or is about to connect.
    Unlinked,
    /// It loads a full copy of the data.
    Copying,
    /// It receives the stream of writes.
    Following,
}

impl ReportedRole {
    /// Reads the answer to ROLE.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn read(answer: &[u8]) -> Result<ReportedRole, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a role with its fields");
        const OFFSET: &str = "replication offset";
        let parts = list(read(answer)?, FORM)?;
        let (role, rest) = parts.split_first().ok_or(FORM)?;
        match (text("role", role)?, rest) {
            ("master" | "primary", [offset, replicas, ..]) => Ok(ReportedRole::Primary {
                offset_bytes: number_of(OFFSET, offset)?,
                replicas: items(replicas, REPLICAS_MAX, FORM)?
                    .iter()
                    .map(follower)
                    .collect::<Result<Vec<_>, _>>()?
                    .into_iter()
                    .flatten()
                    .collect(),
            }),
            ("slave" | "replica", [host, port, state, offset, ..]) => Ok(ReportedRole::Replica {
                of: endpoint_of("address of the primary", host, port)?,
                progress: match text("state of the link", state)? {
                    "connected" => Progress::Following,
                    "sync" => Progress::Copying,
                    // `connect`, `connecting`, `handshake`, `none`, and states of later versions.
                    _ => Progress::Unlinked,
                },
                offset_bytes: match offset {
                    Value::Integer(-1) => None,
                    offset => Some(number_of(OFFSET, offset)?),
                },
            }),
            ("sentinel", [names, ..]) => Ok(ReportedRole::Sentinel {
                names: items(names, PRIMARIES_MAX, FORM)?
                    .iter()
                    .map(name_of)
                    .collect::<Result<_, _>>()?,
            }),
            _ => Err(FORM),
        }
    }
}

/// Reads a replica in the answer of a primary: its address and acknowledged offset. `None` if it
/// has no address.
fn follower(value: &Value) -> Result<Option<(Endpoint, u64)>, AnswerError> {
    const FORM: AnswerError = AnswerError::Form("a replica with host, port and offset");
    match value {
        Value::List(parts) => match parts.as_slice() {
            [host, port, offset, ..] => {
                let endpoint = endpoint_of("address of a replica", host, port)?;
                let offset = number_of("replication offset", offset)?;
                Ok(endpoint.map(|endpoint| (endpoint, offset)))
            }
            _ => Err(FORM),
        },
        _ => Err(FORM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        let host = host.to_owned();
        Endpoint { host, port }
    }

    /// Each role is read, with numbers as integers or as strings.
    #[test]
    fn each_role_is_read() {
        let replica = |of, progress, offset_bytes| ReportedRole::Replica {
            of,
            progress,
            offset_bytes,
        };
        for (answer, expected) in [
            (
                "*3\r\n+master\r\n:7\r\n*2\r\n*3\r\n+h\r\n+1\r\n+5\r\n*3\r\n+\r\n+2\r\n+6\r\n",
                ReportedRole::Primary {
                    offset_bytes: 7,
                    replicas: vec![(at("h", 1), 5)],
                },
            ),
            (
                "*5\r\n+slave\r\n+::1\r\n:1\r\n+connected\r\n:7\r\n",
                replica(Some(at("::1", 1)), Progress::Following, Some(7)),
            ),
            (
                "*5\r\n+slave\r\n+h\r\n:1\r\n+sync\r\n:-1\r\n",
                replica(Some(at("h", 1)), Progress::Copying, None),
            ),
            (
                "*5\r\n+replica\r\n+\r\n:1\r\n+connecting\r\n:0\r\n",
                replica(None, Progress::Unlinked, Some(0)),
            ),
            (
                "*2\r\n+sentinel\r\n*2\r\n+m\r\n+n\r\n",
                ReportedRole::Sentinel {
                    names: vec!["m".to_owned(), "n".to_owned()],
                },
            ),
        ] {
            assert_eq!(
                ReportedRole::read(answer.as_bytes()),
                Ok(expected),
                "{answer}"
            );
        }
    }

    /// A malformed role is an error, and its text names the fault.
    #[test]
    fn malformed_role_error_names_the_fault() {
        let form = "it should be a role with its fields";
        for (answer, text) in [
            ("*0\r\n", form),
            ("+master\r\n", form),
            ("*1\r\n+master\r\n", form),
            ("*3\r\n+master\r\n:1\r\n:1\r\n", form),
            ("*3\r\n+king\r\n:1\r\n*0\r\n", form),
            ("*3\r\n+master\r\n:1\r\n", "it is not one complete reply"),
            (
                "*3\r\n+master\r\n:-1\r\n*0\r\n",
                "the replication offset cannot be '-1'",
            ),
            (
                "*3\r\n+master\r\n:1\r\n*1\r\n*2\r\n+h\r\n+1\r\n",
                "it should be a replica with host, port and offset",
            ),
            (
                "*5\r\n+slave\r\n+h\r\n:65536\r\n+connected\r\n:1\r\n",
                "the address of the primary cannot be '65536'",
            ),
            (
                "*5\r\n+slave\r\n+h h\r\n:1\r\n+connected\r\n:1\r\n",
                "the address of the primary cannot be 'h h'",
            ),
            (
                "*2\r\n+sentinel\r\n*1\r\n$3\r\nm n\r\n",
                "the name of a primary cannot be 'm n'",
            ),
            ("-NOAUTH x\r\n", "it answered 'NOAUTH x'"),
        ] {
            let error = ReportedRole::read(answer.as_bytes()).expect_err(answer);
            assert_eq!(error.to_string(), text, "{answer}");
        }
        let many = format!(
            "*2\r\n+sentinel\r\n*{}\r\n{}",
            PRIMARIES_MAX + 1,
            "+m\r\n".repeat(PRIMARIES_MAX + 1)
        );
        let too_many = Err(AnswerError::TooMany(PRIMARIES_MAX));
        assert_eq!(ReportedRole::read(many.as_bytes()), too_many);
    }
}
