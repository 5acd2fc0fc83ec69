//! Reads the answers of Sentinels, in RESP2 and RESP3.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::str;

use super::{
    ANSWER_BYTES_MAX, AnswerError, Endpoint, HOST_BYTES_MAX, ID_BYTES_MAX, InstanceHealth,
    NAME_BYTES_MAX, PRIMARIES_MAX, Primary, REPLICAS_MAX, Replica, SENTINELS_MAX, SentinelPeer,
};
use crate::number;
use crate::value::Value;

/// Most bytes of an answer that an error shows.
const SHOWN_BYTES_MAX: usize = 100;

impl Primary {
    /// Reads the answer to SENTINEL MASTER.
    ///
    /// # Errors
    /// When the answer is malformed; [`AnswerError::UnknownName`] if the Sentinel watches no such
    /// primary.
    pub fn read(answer: &[u8]) -> Result<Primary, AnswerError> {
        Primary::of(&read(answer)?)
    }

    /// Reads the answer to SENTINEL MASTERS.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn read_all(answer: &[u8]) -> Result<Vec<Primary>, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a list of primaries");
        let primaries = read(answer)?;
        let primaries = items(&primaries, PRIMARIES_MAX, FORM)?;
        primaries.iter().map(Primary::of).collect()
    }

    fn of(value: &Value) -> Result<Primary, AnswerError> {
        let fields = Fields::of(value)?;
        let name = name_of(fields.value("name")?)?;
        let flags = fields.flags()?;
        Ok(Primary {
            name,
            endpoint: fields.endpoint("ip", "port")?,
            health: health_of(flags),
            is_failing_over: has(flags, "failover_in_progress"),
            config_epoch: fields.number("config-epoch")?,
            quorum: fields.number("quorum")?,
            replicas: fields.number("num-slaves")?,
            other_sentinels: fields.number("num-other-sentinels")?,
        })
    }
}

impl Replica {
    /// Reads the answer to SENTINEL REPLICAS.
    ///
    /// # Errors
    /// When the answer is malformed; [`AnswerError::UnknownName`] if the Sentinel watches no such
    /// primary.
    pub fn read_all(answer: &[u8]) -> Result<Vec<Replica>, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a list of replicas");
        let replicas = read(answer)?;
        let replicas = items(&replicas, REPLICAS_MAX, FORM)?;
        replicas.iter().map(Replica::of).collect()
    }

    fn of(value: &Value) -> Result<Replica, AnswerError> {
        let fields = Fields::of(value)?;
        Ok(Replica {
            endpoint: fields.endpoint("ip", "port")?,
            health: health_of(fields.flags()?),
            says_replica: matches!(fields.text("role-reported")?, "slave" | "replica"),
            of: fields.endpoint("master-host", "master-port")?,
            is_linked: fields.text("master-link-status")? == "ok",
            priority: fields.number("slave-priority")?,
            offset_bytes: fields.number("slave-repl-offset")?,
        })
    }
}

impl SentinelPeer {
    /// Reads the answer to SENTINEL SENTINELS.
    ///
    /// # Errors
    /// When the answer is malformed; [`AnswerError::UnknownName`] if the Sentinel watches no such
    /// primary.
    pub fn read_all(answer: &[u8]) -> Result<Vec<SentinelPeer>, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a list of Sentinels");
        let peers = read(answer)?;
        let peers = items(&peers, SENTINELS_MAX, FORM)?;
        peers.iter().map(SentinelPeer::of).collect()
    }

    fn of(value: &Value) -> Result<SentinelPeer, AnswerError> {
        let fields = Fields::of(value)?;
        Ok(SentinelPeer {
            id: match fields.text("runid")? {
                "" => None,
                id => Some(id_of(id)?),
            },
            endpoint: fields.endpoint("ip", "port")?,
            health: health_of(fields.flags()?),
        })
    }
}

/// Reads the answer to SENTINEL GET-MASTER-ADDR-BY-NAME: the address for clients. During a failover
/// it is the new primary as soon as there is one.
///
/// # Errors
/// When the answer is malformed; [`AnswerError::UnknownName`] if the Sentinel watches no such
/// primary.
pub fn read_address(answer: &[u8]) -> Result<Endpoint, AnswerError> {
    const FORM: AnswerError = AnswerError::Form("a host and a port");
    match read(answer)? {
        Value::Null => Err(AnswerError::UnknownName),
        Value::List(parts) => match parts.as_slice() {
            [host, port] => {
                endpoint_of("address of the primary", host, port)?.ok_or(AnswerError::NotKnown)
            }
            _ => Err(FORM),
        },
        _ => Err(FORM),
    }
}

/// Reads the answer to SENTINEL MYID.
///
/// # Errors
/// When the answer is malformed; the error names the fault.
pub fn read_id(answer: &[u8]) -> Result<String, AnswerError> {
    id_of(text(ID, &read(answer)?)?)
}

/// The fields of one server: a map, in RESP2 a list of names and values.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Result<Fields<'a>, AnswerError> {
        match value {
            Value::List(_) => Ok(Fields(value)),
            _ => Err(AnswerError::Form("names of fields with their values")),
        }
    }

    fn value(&self, name: &'static str) -> Result<&'a Value, AnswerError> {
        self.0.field(name).ok_or(AnswerError::Missing(name))
    }

    fn text(&self, name: &'static str) -> Result<&'a str, AnswerError> {
        text(name, self.value(name)?)
    }

    fn number(&self, name: &'static str) -> Result<u64, AnswerError> {
        number_of(name, self.value(name)?)
    }

    fn flags(&self) -> Result<&'a str, AnswerError> {
        self.text("flags")
    }

    fn endpoint(
        &self,
        host: &'static str,
        port: &'static str,
    ) -> Result<Option<Endpoint>, AnswerError> {
        endpoint_of(host, self.value(host)?, self.value(port)?)
    }
}

const ID: &str = "id of a Sentinel";

/// The worst health of the flags. `master`, `slave` and `sentinel` are roles. `master_down` means
/// that the Sentinel thinks a primary is down; its own health is not affected.
fn health_of(flags: &str) -> InstanceHealth {
    match () {
        () if has(flags, "o_down") => InstanceHealth::Failed,
        () if has(flags, "s_down") => InstanceHealth::Suspected,
        () if has(flags, "disconnected") => InstanceHealth::Disconnected,
        () => InstanceHealth::Online,
    }
}

fn has(flags: &str, wanted: &str) -> bool {
    flags.split(',').any(|flag| flag == wanted)
}

pub(super) fn read(answer: &[u8]) -> Result<Value, AnswerError> {
    read_up_to(answer, ANSWER_BYTES_MAX)
}

pub(super) fn read_up_to(answer: &[u8], max: usize) -> Result<Value, AnswerError> {
    if answer.len() > max {
        return Err(AnswerError::TooLong(max));
    }
    match Value::read(answer) {
        None => Err(AnswerError::NotAReply),
        Some(Value::Error(error)) => Err(refusal(&error)),
        Some(value) => Ok(value),
    }
}

fn refusal(error: &[u8]) -> AnswerError {
    if error.starts_with(b"ERR No such master") {
        AnswerError::UnknownName
    } else if error.starts_with(b"IDONTKNOW") {
        AnswerError::NotKnown
    } else {
        AnswerError::Refused(shown(error))
    }
}

pub(super) fn list(value: Value, form: AnswerError) -> Result<Vec<Value>, AnswerError> {
    match value {
        Value::List(values) => Ok(values),
        _ => Err(form),
    }
}

/// The elements of a list, at most `max`.
pub(super) fn items(value: &Value, max: usize, form: AnswerError) -> Result<&[Value], AnswerError> {
    match value {
        Value::List(values) if values.len() <= max => Ok(values),
        Value::List(_) => Err(AnswerError::TooMany(max)),
        _ => Err(form),
    }
}

pub(super) fn text<'a>(name: &'static str, value: &'a Value) -> Result<&'a str, AnswerError> {
    let bytes = value
        .text()
        .ok_or(AnswerError::Form("text where text belongs"))?;
    str::from_utf8(bytes).map_err(|_| AnswerError::Field(name, shown(bytes)))
}

/// Reads a number. Sentinels send it as text, servers mostly as an integer.
pub(super) fn number_of(name: &'static str, value: &Value) -> Result<u64, AnswerError> {
    let (number, text) = match value {
        Value::Integer(number) => (Some(*number), number.to_string()),
        value => {
            let text = text(name, value)?;
            (number::parse(text.as_bytes()), shown(text.as_bytes()))
        }
    };
    let number = number.and_then(|number| u64::try_from(number).ok());
    number.ok_or(AnswerError::Field(name, text))
}

/// Reads a host and a port. `None` without an address: an empty host or `?` is unknown, and a
/// Sentinel whose address another one took has port 0.
pub(super) fn endpoint_of(
    name: &'static str,
    host: &Value,
    port: &Value,
) -> Result<Option<Endpoint>, AnswerError> {
    let host = host_of(name, text(name, host)?)?;
    let number = number_of(name, port)?;
    let port = u16::try_from(number).map_err(|_| AnswerError::Field(name, number.to_string()))?;
    Ok(host
        .filter(|_| port != 0)
        .map(|host| Endpoint { host, port }))
}

pub(super) fn host_of(name: &'static str, host: &str) -> Result<Option<String>, AnswerError> {
    let fits = host.len() <= HOST_BYTES_MAX;
    match host {
        "" | "?" => Ok(None),
        host if fits && host.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Some(host.to_owned()))
        }
        _ => Err(AnswerError::Field(name, shown(host.as_bytes()))),
    }
}

pub(super) fn name_of(value: &Value) -> Result<String, AnswerError> {
    const NAME: &str = "name of a primary";
    name_text(text(NAME, value)?)
}

/// Checks the configured name of a primary. A name with a space is refused: messages separate their
/// words by spaces.
pub(super) fn name_text(name: &str) -> Result<String, AnswerError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && !name.contains(|char: char| char.is_whitespace() || char.is_control()) {
        Ok(name.to_owned())
    } else {
        Err(AnswerError::Field(
            "name of a primary",
            shown(name.as_bytes()),
        ))
    }
}

fn id_of(id: &str) -> Result<String, AnswerError> {
    let fits = (1..=ID_BYTES_MAX).contains(&id.len());
    if fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(id.to_owned())
    } else {
        Err(AnswerError::Field(ID, shown(id.as_bytes())))
    }
}

/// The beginning of some bytes as printable text.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..SHOWN_BYTES_MAX).unwrap_or(bytes));
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}
