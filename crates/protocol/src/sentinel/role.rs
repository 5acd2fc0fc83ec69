//! Reading ROLE: what a server says that it is.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use super::answers::{endpoint_of, items, list, name_of, number_of, read, text};
use super::{AnswerError, Endpoint, PRIMARIES_MAX, REPLICAS_MAX};
use crate::value::Value;

/// What a server says that it is: ROLE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary {
        /// How much it has written to the replication stream.
        offset_bytes: u64,
        /// The replicas that follow it, each with what it has acknowledged of the stream.
        replicas: Vec<(Endpoint, u64)>,
    },
    /// It has what its primary has.
    Replica {
        /// Its primary.
        of: Option<Endpoint>,
        /// How far it has come with following it.
        progress: Progress,
        /// How much of the replication stream it has taken in; `None` before it has begun.
        offset_bytes: Option<u64>,
    },
    /// It is a Sentinel.
    Sentinel {
        /// What it watches.
        names: Vec<String>,
    },
}

/// How far a replica has come with following its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is no connection, or it is only just being made.
    Unlinked,
    /// It takes in a copy of everything.
    Copying,
    /// It takes in what is written.
    Following,
}

impl Role {
    /// Reads the answer to ROLE.
    ///
    /// # Errors
    /// Says what is wrong with the answer.
    pub fn read(answer: &[u8]) -> Result<Role, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a role, with what belongs to it");
        const OFFSET: &str = "replication offset";
        let parts = list(read(answer)?, FORM)?;
        let (role, rest) = parts.split_first().ok_or(FORM)?;
        match (text("role", role)?, rest) {
            ("master" | "primary", [offset, replicas, ..]) => Ok(Role::Primary {
                offset_bytes: number_of(OFFSET, offset)?,
                replicas: items(replicas, REPLICAS_MAX, FORM)?
                    .iter()
                    .map(follower)
                    .collect::<Result<Vec<_>, _>>()?
                    .into_iter()
                    .flatten()
                    .collect(),
            }),
            ("slave" | "replica", [host, port, state, offset, ..]) => Ok(Role::Replica {
                of: endpoint_of("address of the primary", host, port)?,
                progress: match text("state of the link", state)? {
                    "connected" => Progress::Following,
                    "sync" => Progress::Copying,
                    // `connect`, `connecting`, `handshake`, `none`, and what later versions may
                    // say.
                    _ => Progress::Unlinked,
                },
                offset_bytes: match offset {
                    Value::Integer(-1) => None,
                    offset => Some(number_of(OFFSET, offset)?),
                },
            }),
            ("sentinel", [names, ..]) => Ok(Role::Sentinel {
                names: items(names, PRIMARIES_MAX, FORM)?
                    .iter()
                    .map(name_of)
                    .collect::<Result<_, _>>()?,
            }),
            _ => Err(FORM),
        }
    }
}

/// A replica of which a primary says where it is, and what it has acknowledged. Without an address,
/// nobody.
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

    /// Numbers are integers in one place and texts in another.
    #[test]
    fn a_server_says_what_it_is() {
        let replica = |of, progress, offset_bytes| Role::Replica {
            of,
            progress,
            offset_bytes,
        };
        for (answer, expected) in [
            (
                "*3\r\n+master\r\n:7\r\n*2\r\n*3\r\n+h\r\n+1\r\n+5\r\n*3\r\n+\r\n+2\r\n+6\r\n",
                Role::Primary {
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
                Role::Sentinel {
                    names: vec!["m".to_owned(), "n".to_owned()],
                },
            ),
        ] {
            assert_eq!(Role::read(answer.as_bytes()), Ok(expected), "{answer}");
        }
    }

    #[test]
    fn a_malformed_role_is_refused_with_its_reason() {
        let form = "it should be a role, with what belongs to it";
        for (answer, text) in [
            ("*0\r\n", form),
            ("+master\r\n", form),
            ("*1\r\n+master\r\n", form),
            ("*3\r\n+master\r\n:1\r\n:1\r\n", form),
            ("*3\r\n+king\r\n:1\r\n*0\r\n", form),
            ("*3\r\n+master\r\n:1\r\n", "it is not one whole reply"),
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
            let error = Role::read(answer.as_bytes()).expect_err(answer);
            assert_eq!(error.to_string(), text, "{answer}");
        }
        let many = format!(
            "*2\r\n+sentinel\r\n*{}\r\n{}",
            PRIMARIES_MAX + 1,
            "+m\r\n".repeat(PRIMARIES_MAX + 1)
        );
        let too_many = Err(AnswerError::TooMany(PRIMARIES_MAX));
        assert_eq!(Role::read(many.as_bytes()), too_many);
    }
}
